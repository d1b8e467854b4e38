from __future__ import annotations

import gc
import logging
from pathlib import Path
from typing import Any

import pytest

from drumline import Callback, Result, StepInfo, Trainer
from drumline.errors import ConfigError, RunDirExists
from drumline.rundir import read_json
from tests.unit.engine.training import events, rows, trainer_of


class Diary(Callback):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []

    def on_start(self, trainer: Trainer) -> None:
        self.entries.append(("start", trainer.run_dir.name))

    def on_update(self, trainer: Trainer, info: StepInfo) -> None:
        self.entries.append(("update", info.step, info.evaluation is not None))

    def on_epoch_end(self, trainer: Trainer, info: StepInfo) -> None:
        self.entries.append(("epoch", info.epoch, info.step))

    def on_evaluation(self, trainer: Trainer, info: StepInfo) -> None:
        assert info.evaluation is not None
        self.entries.append(("evaluation", info.step, info.evaluation["count"]))

    def on_save(self, trainer: Trainer, path: Path) -> None:
        assert (path / "manifest.json").exists()
        self.entries.append(("save", path.name))

    def on_end(self, trainer: Trainer, result: Result | None) -> None:
        self.entries.append(("end", None if result is None else (result.steps, result.reason)))


def test_each_is_told_at_its_turn(tmp_path: Path) -> None:
    diary = Diary()
    options: dict[str, Any] = {
        "checkpoint": {"every": 2, "asynchronous": False, "at_end": True},
        "evaluate": {"at_start": True},
    }
    with trainer_of(tmp_path / "run", eval_data=rows(5), callbacks=[diary], train={"epochs": 2}, **options) as trainer:
        assert trainer.fit().steps == 6
    assert diary.entries == [
        ("start", "run"),
        ("evaluation", 0, 5),
        ("update", 1, False),
        ("save", "step_2"),
        ("update", 2, False),
        ("evaluation", 3, 5),
        ("epoch", 0, 3),
        ("update", 3, True),
        ("save", "step_4"),
        ("update", 4, False),
        ("update", 5, False),
        ("evaluation", 6, 5),
        ("save", "step_6"),
        ("epoch", 1, 6),
        ("update", 6, True),
        ("end", (6, "done")),
    ]
    assert events(tmp_path / "run").count("checkpoint") == 3


@pytest.mark.parametrize(("every", "saved"), [(None, [3]), (2, [2, 3]), (3, [3]), (1, [1, 2, 3])])
def test_the_last_update_is_saved_once(tmp_path: Path, every: int | None, saved: list[int]) -> None:
    diary = Diary()
    with trainer_of(tmp_path / "run", callbacks=[diary], checkpoint={"every": every, "at_end": True}) as trainer:
        trainer.fit()
    assert [entry for entry in diary.entries if entry[0] == "save"] == [("save", f"step_{step}") for step in saved]


def test_an_end_without_result_is_told_too(tmp_path: Path) -> None:
    class Fails(Diary):
        def on_update(self, trainer: Trainer, info: StepInfo) -> None:
            if info.step == 2:
                raise ArithmeticError("seven")

    fails, left = Fails(), Diary()
    with pytest.raises(ArithmeticError, match="seven"), trainer_of(tmp_path / "run", callbacks=[fails]) as trainer:
        trainer.fit()
    assert fails.entries == [("start", "run"), ("end", None)]
    assert "seven" in read_json(tmp_path / "run" / "exit.json")["message"]
    with trainer_of(tmp_path / "left", callbacks=[left]) as trainer:
        for _ in trainer.steps():
            break
        gc.collect()  # which closes what the loop left
        assert left.entries == [("start", "left"), ("update", 1, False), ("end", None)]
        assert [info.step for info in trainer.steps()] == [2, 3]


def test_a_run_that_never_began_has_no_end(tmp_path: Path) -> None:
    diary = Diary()
    (tmp_path / "run").mkdir()
    with trainer_of(tmp_path / "run", callbacks=[diary]) as trainer, pytest.raises(RunDirExists):
        trainer.fit()
    assert diary.entries == []


def test_what_on_end_raises_hides_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Fails(Callback):
        def on_epoch_end(self, trainer: Trainer, info: StepInfo) -> None:
            raise ArithmeticError("first")

        def on_end(self, trainer: Trainer, result: Result | None) -> None:
            raise KeyError("second")

    with (
        caplog.at_level(logging.ERROR, "drumline"),
        pytest.raises(ArithmeticError, match="first"),
        trainer_of(tmp_path / "run", callbacks=[Fails()]) as trainer,
    ):
        trainer.fit()
    assert "second" in caplog.text


def test_what_on_end_raises_after_a_run_is_its_failure(tmp_path: Path) -> None:
    class Fails(Callback):
        def on_end(self, trainer: Trainer, result: Result | None) -> None:
            if result is not None:
                raise ArithmeticError("too late")

    with pytest.raises(ArithmeticError), trainer_of(tmp_path / "run", callbacks=[Fails()]) as trainer:
        trainer.fit()
    assert read_json(tmp_path / "run" / "exit.json")["exit_status"] == 1


def test_an_object_with_some_of_the_methods_will_do(tmp_path: Path) -> None:
    class Counts:
        def __init__(self) -> None:
            self.epochs = 0

        def on_epoch_end(self, trainer: Trainer, info: StepInfo) -> None:
            self.epochs += 1

    counts: Any = Counts()
    with trainer_of(tmp_path / "run", callbacks=[counts], train={"epochs": 2}) as trainer:
        trainer.fit()
    assert counts.epochs == 2


@pytest.mark.parametrize(("given", "named"), [(Diary, "the class Diary"), (3, "has a int")])
def test_what_is_no_callback_is_refused(tmp_path: Path, given: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        trainer_of(tmp_path / "run", callbacks=[given])
