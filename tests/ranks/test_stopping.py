"""Any rank may ask for the end, and every end is decided by all ranks alike."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

from drumline import Result, StepInfo, Trainer
from drumline.errors import Interrupted, RestartNeeded
from drumline.launcher.spec import MARK
from drumline.parallel.strategy import Batch
from drumline.rundir import read_json, read_lines, write_json
from tests.rank_pool import RankPool
from tests.ranks.training import (
    Case,
    MaskedRegression,
    MaskedRows,
    config_of,
    fresh,
    largest_difference,
    make_model,
    train,
)


def stop_on_rank_1(directory: str) -> tuple[int, str, dict[str, Tensor]]:
    case = Case(directory, {"train": {"global_batch": 8, "max_steps": 10}})

    def stop(trainer: Trainer, info: StepInfo) -> None:
        if dist.get_rank() == 1 and info.step == 3:
            trainer.stop("enough")

    task = MaskedRegression([])
    with Trainer(make_model(), config_of(case), MaskedRows(37), loss=task, callbacks=[stop]) as trainer:
        result = trainer.fit()
        weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    return result.steps, result.reason, weights


def test_a_stop_on_one_rank_ends_all_after_that_update(ranks: RankPool, tmp_path: Path) -> None:
    answers = ranks.run(2, stop_on_rank_1, fresh(tmp_path), timeout=15)
    expected, *_ = ranks.run(1, train, Case(fresh(tmp_path), {"train": {"global_batch": 8, "max_steps": 3}}))
    for steps, reason, weights in answers:
        assert (steps, reason) == (3, "enough")
        assert largest_difference(weights, expected.weights) < 1e-10


class Targets(Dataset[Tensor]):
    """Rows are targets of the one weight that is learned."""

    def __init__(self, *targets: float) -> None:
        self._targets = targets

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(self._targets[index], dtype=torch.float64)


class Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self) -> Tensor:
        return self.weight


def distance(model: nn.Module, batch: Batch) -> Tensor:
    squares: Tensor = (model() - batch).square().mean()
    return squares


def stop_early(directory: str, held_out: tuple[float, ...], patience: int) -> Result:
    """The weight moves towards 1: evaluation gets better on a shard with target 1, worse on one with target -1."""
    early = {"metric": "loss", "patience": patience, "min_delta": 1e-4}
    sections = {"train": {"global_batch": 2, "max_steps": 6}, "evaluate": {"every": 1, "early_stopping": early}}
    data, rows = Targets(*[1.0] * 24), Targets(*held_out)
    with Trainer(Weight(), config_of(Case(directory, sections)), data, eval_data=rows, loss=distance) as trainer:
        return trainer.fit()


@pytest.mark.parametrize(
    ("held_out", "reason", "steps"),
    [
        ((1.0, 1.0, -1.0, -1.0), "early_stop", 3),
        ((1.0, 1.0, 1.0, -1.0), "done", 6),
        ((1.0, -1.0, -1.0, -1.0), "early_stop", 3),
    ],
    ids=["shards-disagree", "better-on-the-whole", "worse-on-the-whole"],
)
def test_early_stopping_looks_at_all_shards(
    ranks: RankPool, tmp_path: Path, held_out: tuple[float, ...], reason: str, steps: int
) -> None:
    (alone,) = ranks.run(1, stop_early, fresh(tmp_path), held_out, 2)
    both = ranks.run(2, stop_early, fresh(tmp_path), held_out, 2, timeout=15)
    for result in both:
        assert (result.steps, result.reason) == (alone.steps, alone.reason) == (steps, reason)
        assert result.history == both[0].history
        for metrics, expected in zip(result.history, alone.history, strict=True):
            assert metrics["loss"] == pytest.approx(expected["loss"], abs=1e-12)


def end_with_nothing_counted(directory: str) -> tuple[int, list[dict[str, Any]]]:
    """No row of the epoch's last update has anything to count."""
    sections = {"train": {"global_batch": 8, "epochs": 2, "shuffle": False}, "track": {"every": 10, "console": False}}
    rows = MaskedRows(16, (3,) * 8 + (0,) * 8)
    with Trainer(
        make_model(),
        config_of(Case(directory, sections)),
        rows,
        loss=MaskedRegression([]),
        eval_data=MaskedRows(5),
    ) as trainer:
        result = trainer.fit()
    return len(result.history), list(read_lines(result.run_dir / "metrics.jsonl"))


def test_an_epoch_may_end_with_nothing_counted(ranks: RankPool, tmp_path: Path) -> None:
    for evaluations, lines in ranks.run(2, end_with_nothing_counted, fresh(tmp_path)):
        assert evaluations == 2
        assert [(line["kind"], line["step"]) for line in lines] == [("eval", 1), ("train", 2), ("eval", 2)]


SICK = "GPU GPU-1 has turned sick: XID 94"


def go_on_after_a_request(directory: str, ours: bool) -> tuple[str, str, int, int]:
    """Ask for a restart after the first update, as the process does that watches the GPUs; then train once more."""
    case = Case(directory, {"train": {"global_batch": 8, "max_steps": 6}})

    def ask(trainer: Trainer, info: StepInfo) -> None:
        if info.step == 1 and dist.get_rank() == 0:
            write_json(trainer.run_dir / "requests/restart", {"reason": SICK})
        if info.step < 3:
            trainer._run.outside._looked -= 1.0  # as if a second had passed since the last look

    kind, message, saved = "", "", 0
    with mock.patch.dict("os.environ", {MARK: "x"} if ours else {}):
        try:
            with Trainer(
                make_model(), config_of(case), MaskedRows(37), loss=MaskedRegression([]), callbacks=[ask]
            ) as trainer:
                trainer.fit()
        except (Interrupted, RestartNeeded) as stop:
            kind, message = type(stop).__name__, str(stop)
    if os.environ["RANK"] == "0":  # which writes both files
        saved = read_json(Path(directory) / "exit.json")["steps"]
        write_json(Path(directory) / "requests/restart", {"reason": "left behind by an attempt that has ended"})
    with Trainer(make_model(), config_of(case), MaskedRows(37), loss=MaskedRegression([])) as trainer:
        return kind, message, saved, trainer.fit().steps


@pytest.mark.parametrize("ours", [True, False], ids=["our-launcher", "another-launcher"])
def test_a_restart_that_is_asked_for_is_made_by_our_launcher_alone(ranks: RankPool, tmp_path: Path, ours: bool) -> None:
    answers = ranks.run(2, go_on_after_a_request, fresh(tmp_path), ours, timeout=15)
    kind, message, saved, steps = answers[0]
    assert answers[1] == (kind, message, 0, 6)
    assert kind == ("RestartNeeded" if ours else "Interrupted")
    assert message.startswith(SICK)
    assert 1 <= saved < 6 and steps == 6
