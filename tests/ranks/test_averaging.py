"""Averaged weights: what is evaluated, on any number of ranks, and what goes on after a resume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline import Trainer
from drumline.parallel.strategy import Batch
from tests.rank_pool import RankPool
from tests.ranks.training import WIDTH, Case, MaskedRegression, MaskedRows, config_of, fresh, largest_difference

NUM_ROWS, NUM_EVAL_ROWS, STEPS = 32, 9, 8


class Linear(nn.Module):
    """A model whose evaluation can be worked out from its weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.inner = nn.Linear(WIDTH, 1).double()

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.inner(x)
        return outputs


class Spoiling(MaskedRegression):
    """Makes one update's loss infinite: the one that has this row."""

    def __init__(self, row: int | None) -> None:
        super().__init__([])
        self._row = row

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        outputs = super().forward(model, batch)
        if model.training and self._row is not None and bool((batch["id"] == self._row).any()):
            return outputs * float("inf")
        return outputs


@dataclass
class Seen:
    """What one rank saw."""

    weights: list[dict[str, Tensor]] = field(default_factory=list)
    """The model's own after each update that was applied."""
    evaluations: list[float] = field(default_factory=list)
    final: float = 0.0
    """An evaluation that the user asks for after the run."""
    average: dict[str, Tensor] = field(default_factory=dict)
    """As the strategy's state has it at the end."""
    skipped: int = 0


def train_averaged(
    directory: str, averaging: Mapping[str, Any], spoilt: int | None, save_at: int, checkpoint: str | None
) -> Seen:
    settings = {"global_batch": 4, "max_steps": STEPS, "shuffle": False, "averaging": averaging, "non_finite": "skip"}
    if spoilt is None:
        settings["non_finite"] = "stop"
    case = Case(directory, {"train": settings, "evaluate": {"every": 1}})
    seen, model = Seen(), Linear()
    rows, held_out = MaskedRows(NUM_ROWS), MaskedRows(NUM_EVAL_ROWS)
    with Trainer(model, config_of(case), rows, loss=Spoiling(spoilt), eval_data=held_out) as trainer:
        if checkpoint is not None:
            trainer.load(checkpoint)
        for info in trainer.steps():
            if info.evaluation is not None:
                seen.weights.append({name: value.clone() for name, value in model.state_dict().items()})
                seen.evaluations.append(info.evaluation["loss"])
            if info.logged is not None:
                seen.skipped = info.logged["skipped"]
            if info.step == save_at and not seen.average:
                trainer.save()
        seen.final = trainer.evaluate()["loss"]
        seen.average = {name: v.clone() for name, v in trainer._run.strategy.state()["average"]["averages"].items()}
    return seen


def loss_of(weights: Mapping[str, Tensor]) -> float:
    """The held-out loss of these weights."""
    model, task, rows = Linear(), MaskedRegression([]), MaskedRows(NUM_EVAL_ROWS)
    model.load_state_dict(weights)
    batch = torch.utils.data.default_collate([rows[i] for i in range(NUM_EVAL_ROWS)])
    with torch.no_grad():
        return float(task.loss(task.forward(model, batch), batch).total) / task.count(batch)


def averages_of(weights: list[dict[str, Tensor]], averaging: Mapping[str, Any]) -> list[dict[str, Tensor]]:
    """The average after each update, by hand."""
    begin, every = int(averaging.get("start", 0) * STEPS), averaging.get("every", 1)
    found, average, taken = [], None, 0
    for update, newest in enumerate(weights, 1):
        if update > begin and (update - begin) % every == 0:
            taken += 1
            share = 1 / taken if averaging["kind"] == "swa" else 1 - averaging["decay"]
            average = (
                newest
                if average is None
                else {name: (1 - share) * average[name] + share * value for name, value in newest.items()}
            )
        found.append(newest if average is None else average)
    return found


AVERAGES: dict[str, dict[str, Any]] = {
    "ema": {"kind": "ema", "decay": 0.6},
    "swa from the middle": {"kind": "swa", "start": 0.5},
    "ema at times": {"kind": "ema", "decay": 0.5, "start": 0.25, "every": 3},
}


@pytest.mark.parametrize("averaging", AVERAGES.values(), ids=AVERAGES.keys())
@pytest.mark.parametrize("spoilt", [None, 9], ids=["all applied", "one skipped"])
def test_what_is_evaluated_is_the_average(
    ranks: RankPool, tmp_path: Path, averaging: dict[str, Any], spoilt: int | None
) -> None:
    runs = [
        seen
        for world in (1, 2)
        for seen in ranks.run(world, train_averaged, fresh(tmp_path), averaging, spoilt, 0, None)
    ]
    for seen in runs:
        assert seen.skipped == (0 if spoilt is None else 1)
        assert len(seen.weights) == STEPS
        expected = averages_of(seen.weights, averaging)
        torch.testing.assert_close(seen.evaluations, [loss_of(average) for average in expected], rtol=0, atol=1e-10)
        assert seen.final == pytest.approx(seen.evaluations[-1], abs=1e-12)
        assert largest_difference(seen.average, expected[-1]) < 1e-12
        for mine, first in zip(seen.weights, runs[0].weights, strict=True):
            assert largest_difference(mine, first) < 1e-10


def test_averaging_does_not_touch_training(ranks: RankPool, tmp_path: Path) -> None:
    averaged, *_ = ranks.run(2, train_averaged, fresh(tmp_path), AVERAGES["ema"], None, 0, None)
    other, *_ = ranks.run(2, train_averaged, fresh(tmp_path), {"kind": "swa"}, None, 0, None)
    for first, second in zip(averaged.weights, other.weights, strict=True):
        assert largest_difference(first, second) == 0


@pytest.mark.parametrize("averaging", AVERAGES.values(), ids=AVERAGES.keys())
@pytest.mark.parametrize("at", [1, 5])
def test_the_average_goes_on_after_a_resume(
    ranks: RankPool, tmp_path: Path, averaging: dict[str, Any], at: int
) -> None:
    whole, *_ = ranks.run(2, train_averaged, str(tmp_path / "whole"), averaging, None, at, None)
    checkpoint = str(tmp_path / "whole" / "checkpoints" / f"step_{at}")
    for world in (1, 2):
        rest, *_ = ranks.run(world, train_averaged, str(tmp_path / f"rest-{world}"), averaging, None, 0, checkpoint)
        tolerance = 0.0 if world == 2 else 1e-10
        torch.testing.assert_close(rest.evaluations, whole.evaluations[at:], rtol=0, atol=tolerance)
        assert largest_difference(rest.average, whole.average) <= tolerance
