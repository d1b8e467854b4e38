"""A run that is asked from outside to stop: saved, ended as resumable, and the process as it was before."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline import Callback, Result, StepInfo, Trainer
from drumline.errors import Interrupted
from drumline.launcher.spec import MARK
from drumline.manifest import check
from drumline.parallel.strategy import Batch
from drumline.rundir import read_json
from tests.unit.engine.training import events, rows, squared_error, trainer_of

ENDLESS = {"epochs": "unset", "max_steps": 100_000}
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MARK, raising=False)
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    monkeypatch.setattr("drumline.engine.outside.LOOK_S", 0.1)


class At(Callback):
    """Does something after the third update, and keeps how the run is said to have ended."""

    def __init__(self, what: Any) -> None:
        self._what = what
        self.ends: list[Result | None] = []

    def on_update(self, trainer: Trainer, info: StepInfo) -> None:
        if info.step == 3:
            self._what(trainer)

    def on_end(self, trainer: Trainer, result: Result | None) -> None:
        self.ends.append(result)


def check_interrupted(run: Path, step: int, message: str) -> None:
    assert read_json(run / "exit.json") == {
        "exit_status": 3,
        "reason": "interrupted",
        "message": message,
        "steps": step,
    }
    assert check(run / f"checkpoints/step_{step}") == []
    assert events(run)[-1] == "interrupted"


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_saves_and_ends_the_script(number: signal.Signals, tmp_path: Path) -> None:
    before = {each: signal.getsignal(each) for each in STOP_SIGNALS}
    callback = At(lambda _: os.kill(os.getpid(), number))
    with (
        pytest.raises(Interrupted) as caught,
        trainer_of(tmp_path / "run", train=ENDLESS, callbacks=[callback]) as trainer,
    ):
        trainer.fit()
    message = f"interrupted by {number.name}"
    assert isinstance(caught.value, SystemExit)
    assert (caught.value.code, caught.value.reason) == (3, message)
    check_interrupted(tmp_path / "run", 3, message)
    assert [result and (result.steps, result.reason) for result in callback.ends] == [(3, message)]
    assert {each: signal.getsignal(each) for each in STOP_SIGNALS} == before


def test_only_the_signals_of_the_config(tmp_path: Path) -> None:
    hits: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: hits.append(number))
    try:
        callback = At(lambda _: os.kill(os.getpid(), signal.SIGUSR1))
        faults = {"stop_signals": ["SIGTERM"]}
        with trainer_of(tmp_path / "run", train={"epochs": 2}, faults=faults, callbacks=[callback]) as trainer:
            assert trainer.fit().reason == "done"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert hits == [signal.SIGUSR1]


def test_your_own_loop_ends_with_it_too_and_can_go_on(tmp_path: Path) -> None:
    seen = []
    with trainer_of(tmp_path / "run", train={"epochs": 3}) as trainer:
        with pytest.raises(Interrupted):
            for _ in range(3):
                for info in trainer.steps(epochs=1):
                    seen.append(info.step)
                    if info.step == 4:
                        os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [1, 2, 3, 4]
        check_interrupted(tmp_path / "run", 4, "interrupted by SIGTERM")
        assert trainer.fit().steps == 9  # as in a notebook
    assert read_json(tmp_path / "run/exit.json")["exit_status"] == 0


def test_a_stop_request_is_heeded_and_removed(tmp_path: Path) -> None:
    request = tmp_path / "run/requests/stop"
    with pytest.raises(Interrupted), trainer_of(tmp_path / "run", train=ENDLESS, callbacks=[paced]) as trainer:
        for info in trainer.steps():
            if info.step == 3:
                request.touch()
    assert not request.exists()
    end = read_json(tmp_path / "run/exit.json")
    check_interrupted(tmp_path / "run", end["steps"], "asked to stop by a request file")


def test_a_save_request_saves_and_the_run_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with trainer_of(run, train=ENDLESS, callbacks=[paced]) as trainer:
        for info in trainer.steps():
            if info.step == 3:
                (run / "requests/save").touch()
            if list((run / "checkpoints").glob("step_*")):
                trainer.stop("seen")
    [saved] = (run / "checkpoints").iterdir()
    assert check(saved) == []
    assert list((run / "requests").iterdir()) == []
    assert read_json(run / "exit.json")["reason"] == "seen"


def paced(trainer: Trainer, info: StepInfo) -> None:
    """Requests are looked for now and then: not thousands of updates in between."""
    time.sleep(0.02)


def test_a_time_limit(tmp_path: Path) -> None:
    began = time.monotonic()
    train = {**ENDLESS, "max_time_s": 0.2}
    with (
        pytest.raises(Interrupted, match=r"train\.max_time_s=0\.2 is over"),
        trainer_of(tmp_path / "run", train=train) as t,
    ):
        t.fit()
    assert 0.2 < time.monotonic() - began < 10


def test_the_end_of_a_slurm_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(math.ceil(time.time() + 0.5)))
    with pytest.raises(Interrupted), trainer_of(tmp_path / "run", train=ENDLESS) as trainer:
        trainer.fit()
    assert read_json(tmp_path / "run/exit.json")["message"] == "the SLURM job is about to end"


def in_a_thread(trainer: Trainer) -> tuple[threading.Thread, list[Any]]:
    """fit() in another thread, and what comes of it."""
    found: list[Any] = []

    def fit() -> None:
        try:
            found.append(trainer.fit())
        except Interrupted as stop:
            found.append(stop)

    thread = threading.Thread(target=fit)
    thread.start()
    return thread, found


def test_in_a_thread_handlers_stay_and_stop_works(tmp_path: Path) -> None:
    trained = threading.Event()
    trainer = trainer_of(tmp_path / "run", train=ENDLESS, callbacks=[lambda *_: trained.set()])
    before = {each: signal.getsignal(each) for each in STOP_SIGNALS}
    thread, found = in_a_thread(trainer)
    assert trained.wait(20)
    assert {each: signal.getsignal(each) for each in STOP_SIGNALS} == before
    trainer.stop("from outside")
    thread.join(20)
    assert found[0].reason == "from outside"
    trainer.close()


def test_in_a_thread_a_request_works(tmp_path: Path) -> None:
    trained = threading.Event()
    trainer = trainer_of(tmp_path / "run", train=ENDLESS, callbacks=[lambda *_: trained.set(), paced])
    thread, found = in_a_thread(trainer)
    assert trained.wait(20)
    (tmp_path / "run/requests/stop").touch()
    thread.join(20)
    assert isinstance(found[0], Interrupted)
    trainer.close()


def test_a_stop_that_comes_before_the_run_is_heeded(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", train=ENDLESS)
    trainer.stop("never mind")
    with trainer:
        result = trainer.fit()
    assert (result.steps, result.reason) == (0, "never mind")


def test_a_stop_of_the_users_own_goes_before_a_signal(tmp_path: Path) -> None:
    def both(trainer: Trainer) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        trainer.stop("enough")

    with trainer_of(tmp_path / "run", train=ENDLESS, callbacks=[At(both)]) as trainer:
        assert trainer.fit().reason == "enough"
    assert read_json(tmp_path / "run/exit.json")["exit_status"] == 0


def test_a_signal_in_an_evaluation_ends_it_and_it_is_made_up_for(tmp_path: Path) -> None:
    batches: list[int] = []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        if not torch.is_grad_enabled():
            batches.append(len(batch[0]))
            if len(batches) == 2:
                os.kill(os.getpid(), signal.SIGUSR1)
        return squared_error(model, batch)

    given: dict[str, Any] = {"train": ENDLESS, "evaluate": {"every": 2, "batch": 1}, "eval_data": rows(9), "loss": loss}
    with trainer_of(tmp_path / "run", **given) as trainer:
        with pytest.raises(Interrupted):
            trainer.fit()
        check_interrupted(tmp_path / "run", 2, "interrupted by SIGUSR1")
        assert len(batches) < 9
        # The next call begins with the evaluation that is owed.
        info = next(trainer.steps())
        assert info.step == 3
        assert len(batches) > 9


def test_handlers_come_back_after_a_failure(tmp_path: Path) -> None:
    before = {each: signal.getsignal(each) for each in STOP_SIGNALS}

    def broken(_: Trainer) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), trainer_of(tmp_path / "run", callbacks=[At(broken)]) as trainer:
        trainer.fit()
    assert {each: signal.getsignal(each) for each in STOP_SIGNALS} == before
