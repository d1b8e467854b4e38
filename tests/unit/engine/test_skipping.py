"""Gradients that are not finite: the run stops, or the update is skipped and counts nowhere (case 16)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from drumline.errors import NonFiniteError
from drumline.parallel.precision import INITIAL_SCALE
from drumline.rundir import read_json, read_lines
from tests.unit.engine.training import assert_same, events, make_model, rows, state_of, trainer_of


def spoilt(*windows: int, count: int = 20) -> TensorDataset:
    """Rows in windows of four; those of the named windows are NaN."""
    data = rows(count)
    for window in windows:
        data.tensors[0][4 * window : 4 * window + 4] = float("nan")
    return data


TRAIN: dict[str, Any] = {"shuffle": False, "non_finite": "skip"}


@pytest.mark.parametrize("micro", [1, "auto"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_stop_ends_the_run_with_the_weights_of_the_update_before(
    tmp_path: Path, micro: int | str, optimizer: str
) -> None:
    train: dict[str, Any] = {"shuffle": False, "micro_batch": micro, "optimizer": {"name": optimizer}}
    with trainer_of(tmp_path / "good", rows(20), train={**train, "max_steps": 2}) as good:
        good.fit()
    model = make_model()
    with (
        trainer_of(tmp_path / "run", spoilt(2), model=model, train=train) as trainer,
        pytest.raises(NonFiniteError, match="update 3 is NaN") as caught,
    ):
        trainer.fit()
    assert "non_finite=skip" in caught.value.fix
    assert_same(state_of(model), state_of(good.model))
    ended = read_json(tmp_path / "run" / "exit.json")
    assert (ended["exit_status"], ended["reason"], ended["steps"]) == (1, "failed", 2)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("bad", [0, 2, 4])
def test_a_skipped_update_is_as_if_its_rows_had_not_been(
    tmp_path: Path, norm: bool, optimizer: str, bad: int, caplog: pytest.LogCaptureFixture
) -> None:
    train = {**TRAIN, "optimizer": {"name": optimizer}, "max_norm": 1.0}
    kept = [i for i in range(20) if i // 4 != bad]
    with trainer_of(
        tmp_path / "good", TensorDataset(*rows(20)[kept]), model=make_model(norm=norm), train=train
    ) as good:
        good.fit()
    with (
        caplog.at_level(logging.WARNING, "drumline"),
        trainer_of(tmp_path / "run", spoilt(bad), model=make_model(norm=norm), train=train) as trainer,
    ):
        result = trainer.fit()
    assert (result.steps, result.skipped, result.reason) == (4, 1, "done")
    assert_same(state_of(trainer.model), state_of(good.model))
    assert events(tmp_path / "run").count("skipped") == 1
    assert f"update {bad + 1} skipped" in caplog.text


def test_rates_and_steps_count_completed_updates(tmp_path: Path) -> None:
    train = {**TRAIN, "max_steps": 4, "epochs": "unset", "schedule": {"name": "linear", "final_fraction": 0.25}}
    with trainer_of(tmp_path / "run", spoilt(0, 2), train=train) as trainer:
        infos = list(trainer.steps())
    assert [info.step for info in infos] == [0, 1, 1, 2, 3, 3, 4]
    rates = [info.logged["lr"] for info in infos if info.logged is not None]
    assert rates == pytest.approx([0.05, 0.0375, 0.025, 0.0125])
    lines = list(read_lines(tmp_path / "run" / "metrics.jsonl"))
    assert [(line["step"], line["skipped"]) for line in lines] == [(1, 1), (2, 2), (3, 2), (4, 3)]
    assert all(torch.isfinite(torch.tensor(line["loss"])) for line in lines)


def test_what_is_due_at_a_number_of_updates_is_due_once(tmp_path: Path) -> None:
    with trainer_of(
        tmp_path / "run",
        spoilt(0, 2, 3, count=28),
        eval_data=rows(4),
        train=TRAIN,
        evaluate={"every": 2},
        checkpoint={"every": 2},
        track={"every": 2},
    ) as trainer:
        history = trainer.fit().history
    assert [entry["step"] for entry in history] == [2, 4]
    assert [line["step"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")] == [2, 2, 4, 4]
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["step_2", "step_4"]


def test_a_ready_scheduler_waits_for_completed_updates(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    with trainer_of(
        tmp_path / "run", spoilt(0), model=model, optimizer=optimizer, scheduler=scheduler, train=TRAIN
    ) as trainer:
        result = trainer.fit()
    assert (result.steps, result.skipped, scheduler.last_epoch) == (4, 1, 4)


def test_too_many_in_a_row_end_the_run(tmp_path: Path) -> None:
    train = {**TRAIN, "max_skipped": 3}
    with trainer_of(tmp_path / "two", spoilt(0, 1, 3, 4), train=train) as trainer:
        assert trainer.fit().skipped == 4
    with (
        trainer_of(tmp_path / "three", spoilt(1, 2, 3), train=train) as trainer,
        pytest.raises(NonFiniteError, match="3 updates in a row"),
    ):
        trainer.fit()
    assert read_json(tmp_path / "three" / "exit.json")["steps"] == 1


def test_fp16_skips_until_its_scale_fits_and_then_trains(tmp_path: Path) -> None:
    train = {
        "precision": "fp16",
        "max_steps": 30,
        "epochs": "unset",
        "global_batch": 32,
        "optimizer": {"name": "adamw"},
    }
    x, y = rows(32).tensors
    data = TensorDataset(x.float(), y.float() * 40)  # autocast leaves float64 alone
    with trainer_of(tmp_path / "run", data, model=make_model().float(), train=train) as trainer:
        infos = list(trainer.steps())
        path = trainer.save()
    lines = [info.logged for info in infos if info.logged is not None]
    assert len(lines) == 30
    skipped = lines[-1]["skipped"]
    assert 0 < skipped < 10
    assert lines[-1]["loss"] < lines[0]["loss"]
    state = torch.load(path / "state.pt", weights_only=True)["strategy"]["learners"]["main"]
    assert state["loss_scale"]["scale"] == INITIAL_SCALE / 2**skipped
    assert state["completed"] == 30
