from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline import TrainConfig, Trainer
from drumline.data.order import epoch_order
from drumline.engine.records import StepInfo
from drumline.errors import ConfigError, DataError
from drumline.parallel.strategy import Batch
from drumline.rundir import read_json
from tests.unit.engine.training import (
    assert_same,
    events,
    losses,
    make_model,
    rows,
    squared_error,
    state_of,
    trainer_of,
)


def by_hand(updates: int, *, momentum: float = 0.9) -> tuple[list[float], nn.Module]:
    """The loop that a user would write."""
    model, data = make_model(), rows()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=momentum)
    found = []
    for epoch in range(updates):
        order = epoch_order(len(data), 0, epoch, shuffle=True)
        for start in range(0, len(data), 4):
            loss = squared_error(model, data[torch.from_numpy(order[start : start + 4])])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
            if len(found) == updates:
                return found, model
    raise AssertionError("epochs have updates")


def test_five_lines_are_the_hand_written_loop(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "run", train={"epochs": 2}) as trainer:
        infos = list(trainer.steps())
    expected, model = by_hand(6)
    torch.testing.assert_close(losses(infos), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(trainer.model.state_dict(), model.state_dict(), rtol=0, atol=1e-12)
    assert [(i.step, i.epoch, i.samples, i.units) for i in infos] == [
        (1, 0, 4, 4),
        (2, 0, 4, 4),
        (3, 0, 2, 2),
        (4, 1, 4, 4),
        (5, 1, 4, 4),
        (6, 1, 2, 2),
    ]


@pytest.mark.parametrize("micro", [1, 2, 3])
def test_accumulation_does_not_change_the_numbers(tmp_path: Path, micro: int) -> None:
    with trainer_of(tmp_path / "run", train={"micro_batch": micro}) as trainer:
        infos = list(trainer.steps())
    expected, model = by_hand(3)
    torch.testing.assert_close(losses(infos), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(trainer.model.state_dict(), model.state_dict(), rtol=0, atol=1e-12)


def test_fit_says_what_the_run_came_to(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "run", eval_data=rows(5, seed=1), train={"epochs": 2}) as trainer:
        result = trainer.fit()
        again = trainer.fit()
    assert (result.steps, result.skipped, result.reason, result.run_dir) == (6, 0, "done", tmp_path / "run")
    assert [entry["step"] for entry in result.history] == [3, 6]
    assert result.evaluation == result.history[-1]
    assert result.evaluation is not None
    assert result.evaluation["count"] == 5
    assert again == result
    assert trainer.run_dir == tmp_path / "run"


def test_a_train_config_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Trainer(make_model(), TrainConfig(global_batch=4, epochs=1), rows(), loss=squared_error) as trainer:
        result = trainer.fit()
    assert result.steps == 3
    assert result.run_dir.parent == Path("runs")
    assert (result.run_dir / "checkpoints" / "step_3").is_dir()


def test_steps_an_epoch_at_a_time_is_fit(tmp_path: Path) -> None:
    options: dict[str, Any] = {"eval_data": rows(5, seed=1), "train": {"epochs": 2}}
    with trainer_of(tmp_path / "whole", **options) as whole:
        expected = list(whole.steps())
    with trainer_of(tmp_path / "parts", **options) as parts:
        first = list(parts.steps(epochs=1))
        assert [info.epoch for info in first] == [0, 0, 0]
        second = list(parts.steps(epochs=1))
        assert list(parts.steps(epochs=1)) == []
    found = first + second
    assert losses(found) == losses(expected)
    assert [info.evaluation for info in found] == [info.evaluation for info in expected]
    assert_same(parts.model.state_dict(), whole.model.state_dict())


def test_max_steps_ends_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "run", train={"epochs": "unset", "max_steps": 5}) as trainer:
        assert [info.epoch for info in trainer.steps()] == [0, 0, 0, 1, 1]


def test_callbacks_see_every_update_before_the_callers_loop(tmp_path: Path) -> None:
    seen: list[Any] = []

    def callback(trainer: Trainer, info: StepInfo) -> None:
        seen.append(("callback", info.step, trainer.model.training))

    with trainer_of(tmp_path / "run", callbacks=[callback]) as trainer:
        for info in trainer.steps():
            seen.append(("loop", info.step, info.logged is not None))
    assert seen == [entry for step in (1, 2, 3) for entry in (("callback", step, True), ("loop", step, True))]


def test_logged_values_are_weighed_means_of_the_interval(tmp_path: Path) -> None:
    def callback(trainer: Trainer, info: StepInfo) -> None:
        trainer.log("mine", float(info.step), weight=info.samples)
        trainer.log("last", torch.tensor([2.0]))

    with trainer_of(tmp_path / "run", callbacks=[callback], train={"epochs": 2}, track={"every": 3}) as trainer:
        lines = [info.logged for info in trainer.steps() if info.logged is not None]
    # A callback comes after its update's line, so that its value is in the next one.
    assert [line["step"] for line in lines] == [3, 6]
    assert (lines[0]["mine"], lines[0]["last"]) == ((1 * 4 + 2 * 4) / 8, 2.0)
    assert lines[1]["mine"] == (3 * 2 + 4 * 4 + 5 * 4) / 10


@pytest.mark.parametrize(("name", "value"), [("loss", 1.0), ("lr", 1.0), ("mine", torch.zeros(2))])
def test_what_cannot_be_logged_is_refused(tmp_path: Path, name: str, value: float | Tensor) -> None:
    with trainer_of(tmp_path / "run") as trainer, pytest.raises(ConfigError, match=name):
        trainer.log(name, value)


@pytest.mark.parametrize("norm", [False, True])
def test_stop_after_an_update_leaves_exactly_that_many(tmp_path: Path, norm: bool) -> None:
    def callback(trainer: Trainer, info: StepInfo) -> None:
        if info.step == 4:
            trainer.stop("enough")

    # Five rows in windows of two leave one row, which BatchNorm refuses.
    options = {"train": {"epochs": 2, "global_batch": 5}}
    with trainer_of(tmp_path / "whole", rows(15), model=make_model(norm=norm), **options) as whole:
        expected = [state_of(whole.model) for _ in whole.steps()]
    stopped = make_model(norm=norm)
    with trainer_of(tmp_path / "run", rows(15), model=stopped, callbacks=[callback], **options) as trainer:
        result = trainer.fit()
        assert (result.steps, result.reason) == (4, "enough")
        assert read_json(tmp_path / "run" / "exit.json") == {
            "exit_status": 0,
            "reason": "enough",
            "message": "",
            "steps": 4,
        }
        assert_same(state_of(stopped), expected[3])
        assert trainer.fit().steps == 6
        assert_same(state_of(stopped), expected[5])


def test_early_stopping(tmp_path: Path) -> None:
    evaluate = {"every": 1, "early_stopping": {"patience": 2}}
    with trainer_of(
        tmp_path / "run", eval_data=rows(4, 1), evaluate=evaluate, train={"lr": 1e-300, "epochs": 9}
    ) as trainer:
        result = trainer.fit()
    assert (result.reason, result.steps, len(result.history)) == ("early_stop", 3, 3)
    assert "early_stop" in events(tmp_path / "run")


@pytest.mark.parametrize(
    ("every", "at_start", "steps"),
    [("epoch", False, [3, 6]), ("end", False, [6]), (2, False, [2, 4, 6]), (4, True, [0, 4, 6]), ("end", True, [0, 6])],
)
def test_when_it_evaluates(tmp_path: Path, every: int | str, at_start: bool, steps: list[int]) -> None:
    evaluate = {"every": every, "at_start": at_start}
    with trainer_of(tmp_path / "run", eval_data=rows(4, 1), evaluate=evaluate, train={"epochs": 2}) as trainer:
        assert [entry["step"] for entry in trainer.fit().history] == steps


@pytest.mark.parametrize("skips", [False, True])
def test_a_line_and_a_checkpoint_an_epoch(tmp_path: Path, skips: bool) -> None:
    """Also where an epoch's last update is skipped, and counts as none."""
    data = rows()
    if skips:
        last = epoch_order(len(data), 0, 0, shuffle=True)[-1]
        data.tensors[1][last] = float("nan")
    once: dict[str, Any] = {"every": "epoch"}
    with trainer_of(
        tmp_path / "run", data, track=once, checkpoint=once, train={"epochs": 1, "non_finite": "skip"}
    ) as trainer:
        infos = list(trainer.steps())
        made = trainer.run_dir / "checkpoints"
    updates = 2 if skips else 3
    assert [info.logged is not None for info in infos] == [False, False, True]
    line = infos[-1].logged
    assert line is not None and (line["step"], line["skipped"]) == (updates, 3 - updates)
    if not skips:
        assert line["loss"] == pytest.approx(sum(n * x for n, x in zip((4, 4, 2), by_hand(3)[0], strict=True)) / 10)
    assert [path.name for path in made.iterdir() if path.name.startswith("step_")] == [f"step_{updates}"]


def test_evaluation_is_exact_and_leaves_modes_alone(tmp_path: Path) -> None:
    model = make_model(dropout=0.5)
    held_out = rows(7, seed=1)
    with trainer_of(tmp_path / "run", model=model, eval_data=held_out, evaluate={"batch": 3}) as trainer:
        trainer.model.train()
        trainer.model[0].eval()  # type: ignore[index]
        modes = [module.training for module in model.modules()]
        metrics = trainer.evaluate()
        assert [module.training for module in model.modules()] == modes
    model.eval()
    expected = float(squared_error(model, held_out[:]).detach())
    assert metrics["count"] == 7
    assert metrics["loss"] == pytest.approx(expected, rel=1e-12)


def test_an_empty_evaluation_counts_zero(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "run", eval_data=rows(0)) as trainer:
        assert trainer.evaluate() == {"count": 0}
        assert trainer.fit().evaluation == {"step": 3, "count": 0}


def test_evaluation_without_data_is_refused(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "run") as trainer, pytest.raises(ConfigError, match="no evaluation data"):
        trainer.evaluate()


def test_predictions_are_those_of_the_model_and_leave_training_alone(tmp_path: Path) -> None:
    held_out = rows(7, seed=1)
    with trainer_of(tmp_path / "whole") as whole:
        whole.fit()
    with trainer_of(tmp_path / "run", model=make_model(dropout=0.0)) as trainer:
        infos = trainer.steps()
        next(infos)
        found = trainer.predict(held_out, forward=lambda model, batch: model(batch[0]))
        with torch.no_grad():
            expected = trainer.model(held_out.tensors[0])
        torch.testing.assert_close(torch.stack(found), expected, rtol=0, atol=1e-12)
        assert trainer.model.training
        assert [info.step for info in infos] == [2, 3]
        with pytest.raises(ConfigError, match="predicts is not known"):
            trainer.predict(held_out)
    assert_same(trainer.model.state_dict(), whole.model.state_dict())


def test_training_without_rows_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "run", rows(0)) as trainer, pytest.raises(DataError, match="empty"):
        trainer.fit()
    assert not (tmp_path / "run").exists()


def count_positive(batch: Batch) -> Tensor:
    return torch.count_nonzero(batch[1] > 0)


def positive_error(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    mask = y > 0
    error: Tensor = ((model(x) - y).square() * mask).sum() / mask.sum()
    return error


def test_windows_that_count_nothing_are_passed_over(tmp_path: Path) -> None:
    data = rows(12)
    y = data.tensors[1]
    y.copy_(torch.tensor([1.0] * 4 + [-1.0] * 4 + [2.0, -1.0, -1.0, -1.0]).unsqueeze(1))
    options: dict[str, Any] = {"loss": positive_error, "count": count_positive, "eval_data": data}
    with trainer_of(
        tmp_path / "run", data, train={"shuffle": False, "micro_batch": 2, "epochs": 2}, **options
    ) as trainer:
        infos = list(trainer.steps())
    assert [(info.step, info.samples, info.units) for info in infos] == [(1, 4, 4), (2, 4, 1), (3, 4, 4), (4, 4, 1)]
    assert all(torch.isfinite(torch.tensor(losses(infos))))
    assert events(tmp_path / "run").count("empty_window") == 2
    assert infos[1].evaluation is not None
    assert infos[1].evaluation["count"] == 12


def test_an_epoch_that_ends_with_a_void_window_is_evaluated_too(tmp_path: Path) -> None:
    data = rows(8)
    data.tensors[1].copy_(torch.tensor([1.0] * 4 + [-1.0] * 4).unsqueeze(1))
    with trainer_of(
        tmp_path / "run",
        data,
        loss=positive_error,
        count=count_positive,
        eval_data=data,
        train={"shuffle": False, "epochs": 2},
    ) as trainer:
        assert [entry["step"] for entry in trainer.fit().history] == [1, 2]
