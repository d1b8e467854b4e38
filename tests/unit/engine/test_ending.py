from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import psutil
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from drumline import Trainer
from drumline.engine.ending import tell
from drumline.engine.recorder import Recorder
from drumline.engine.records import StepInfo
from drumline.engine.run import Run
from drumline.errors import DataError, DrumlineError
from drumline.launcher.spec import MARK
from drumline.launcher.world import World
from drumline.parallel.side_channel import StoreChannel
from drumline.parallel.strategy import Batch
from drumline.rundir import read_json
from tests.unit.engine.training import (
    events,
    rows,
    squared_error,
    trainer_of,
)


def open_files(directory: Path) -> list[str]:
    return [file.path for file in psutil.Process().open_files() if file.path.startswith(str(directory))]


def test_leaving_the_loop_and_closing_leaves_nothing_open(tmp_path: Path) -> None:
    states = torch.get_rng_state()
    with trainer_of(tmp_path / "run", loader={"num_workers": 2}) as trainer:
        for info in trainer.steps():
            if info.step == 1:
                break
        assert open_files(tmp_path)
    assert not open_files(tmp_path)
    assert torch.equal(torch.get_rng_state(), states)
    assert read_json(tmp_path / "run" / "exit.json")["reason"] == "closed"
    trainer.close()
    for use in (trainer.fit, trainer.evaluate, trainer.save):
        with pytest.raises(DrumlineError, match="make a new Trainer"):
            use()
    assert trainer.run_dir == tmp_path / "run"


def test_closing_ends_loader_processes_of_steps_that_are_still_held(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    trainer = trainer_of(tmp_path / "run", rows(40), loader={"num_workers": 2})
    steps = trainer.steps()
    next(steps)
    assert set(psutil.Process().children()) != before
    trainer.close()
    assert set(psutil.Process().children()) == before
    steps.close()  # type: ignore[attr-defined]


def test_an_error_in_the_users_loss_ends_the_run(tmp_path: Path) -> None:
    calls = []

    def fails(model: nn.Module, batch: Batch) -> Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise KeyError("lost")
        return squared_error(model, batch)

    trainer = trainer_of(tmp_path / "run", loss=fails, loader={"num_workers": 2})
    with pytest.raises(KeyError, match="lost"):
        trainer.fit()
    assert not open_files(tmp_path)
    ended = read_json(tmp_path / "run" / "exit.json")
    assert (ended["exit_status"], ended["reason"], ended["steps"]) == (1, "failed", 2)
    assert "KeyError" in ended["message"]
    assert __file__ in ended["message"]
    assert events(tmp_path / "run")[-1] == "failed"
    with pytest.raises(DrumlineError, match="make a new Trainer"):
        trainer.fit()


@pytest.mark.parametrize("error", [KeyError("mine"), DataError("torn", "mend it")])
def test_an_error_of_the_callers_own_loop_ends_the_run(tmp_path: Path, error: Exception) -> None:
    def run() -> None:
        with trainer_of(tmp_path / "run") as trainer:
            for info in trainer.steps():
                if info.step == 2:
                    raise error

    with pytest.raises(type(error)) as caught:
        run()
    assert caught.value is error
    ended = read_json(tmp_path / "run" / "exit.json")
    assert (ended["exit_status"], ended["reason"], ended["steps"]) == (
        getattr(error, "exit_status", 1),
        "failed",
        2,
    )
    assert not open_files(tmp_path)


def test_an_error_in_a_callback_ends_the_run(tmp_path: Path) -> None:
    def callback(trainer: Trainer, info: StepInfo) -> None:
        raise RuntimeError(f"at {info.step}")

    with trainer_of(tmp_path / "run", callbacks=[callback]) as trainer, pytest.raises(RuntimeError, match="at 1"):
        trainer.fit()
    assert read_json(tmp_path / "run" / "exit.json")["reason"] == "failed"


class Order:
    """Stands in for the recorder, and notes when what ends the run's groups is called."""

    def __init__(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        run.recorder = cast(Recorder, self)
        for name in ("abort", "close"):
            monkeypatch.setattr(run.groups, name, self._noted(getattr(run.groups, name)))

    def _noted(self, ends: Callable[[], None]) -> Callable[[], None]:
        def end() -> None:
            self.calls.append("groups")
            ends()

        return end

    def end(self) -> None:
        self.calls.append("end")

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.parametrize(
    ("launched", "fails", "calls"),
    [
        (False, False, ["end", "groups", "close"]),
        (True, False, ["end", "groups", "close"]),
        (False, True, ["end", "groups", "close"]),
        (True, True, ["end", "groups"]),  # the launcher waits for seconds only
    ],
)
def test_nobody_waits_for_the_recorder_of_a_run_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: bool, fails: bool, calls: list[str]
) -> None:
    trainer = trainer_of(tmp_path / "run")
    order = Order(trainer._run, monkeypatch)
    if launched:
        monkeypatch.setenv(MARK, "some launch")
    if fails:
        with pytest.raises(KeyError), trainer:
            raise KeyError("mine")
    else:
        trainer.close()
    assert order.calls == calls


@pytest.mark.parametrize(
    ("method", "who"),
    [("tcp://127.0.0.1:1", "rank 0, which serves"), ("agent://127.0.0.1:1", "the launcher, which serves")],
)
def test_a_rank_that_lost_the_store_says_who_served_it(method: str, who: str) -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    side = StoreChannel(dist.TCPStore("127.0.0.1", server.port), 1, 2, 5.0)
    side.report_failure("")
    del server
    with pytest.raises(dist.DistNetworkError) as lost:
        side.failure()
    told = tell(World(1, 2, 1, 2, method), side, lost.value)
    assert told.peer is not None and str(told.peer).startswith(who)
    assert tell(World(1, 2, 1, 2, method), side, ValueError("its own")).peer is None
