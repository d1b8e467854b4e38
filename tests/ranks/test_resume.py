"""Saved in the middle of an epoch, loaded on any number of ranks: the rest goes as if nothing had happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline import Loss, Trainer
from drumline.parallel.strategy import Batch
from tests.rank_pool import RankError, RankPool
from tests.ranks.training import (
    LENGTH,
    WIDTH,
    Case,
    MaskedRegression,
    MaskedRows,
    config_of,
    largest_difference,
    make_model,
)

# Five updates an epoch, the last one of five rows: saved in the middle of the first, at its end, in the second.
NUM_ROWS, STEPS, SAVES = 37, 12, (3, 5, 7)
CONFIG: dict[str, Any] = {
    "train": {
        "global_batch": 8,
        "micro_batch": 2,
        "max_steps": STEPS,
        "optimizer": {"name": "adamw", "weight_decay": 0.1},
        "schedule": {"name": "cosine", "warmup_steps": 2},
        "lr": 0.01,
    },
    "evaluate": {"every": 2},
}


class RowsLogged(MaskedRegression):
    """Logs which rows an update was made of: the sum of 2**id over them, divided by their number."""

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        loss = super().loss(outputs, batch)
        rows = torch.exp2(batch["id"].double()).sum()
        return Loss(loss.total, loss.aux, {"rows": (rows, float(len(batch["id"])))})


def with_dropout() -> nn.Module:
    torch.manual_seed(9)
    layers = (nn.BatchNorm1d(LENGTH), nn.Linear(WIDTH, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    return nn.Sequential(*layers).double()


MODELS = {"plain": make_model, "dropout": with_dropout}


@dataclass
class Part:
    """What one rank saw of a run, from its start or from a checkpoint on."""

    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    rows: list[list[int]] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)


def train_part(directory: str, model: str, ready: bool, saves: tuple[int, ...], checkpoint: str | None) -> Part:
    part, network = Part(), MODELS[model]()
    options: dict[str, Any] = {}
    if ready:
        optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9, foreach=True)
        options = {"optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)}
    rows, held_out = MaskedRows(NUM_ROWS), MaskedRows(9)
    task = RowsLogged([])
    with Trainer(
        network, config_of(Case(directory, CONFIG)), rows, loss=task, eval_data=held_out, **options
    ) as trainer:
        if checkpoint is not None:
            trainer.load(Path(checkpoint))
        for info in trainer.steps():
            assert info.logged is not None
            part.losses.append(info.logged["loss"])
            part.rates.append(info.logged["lr"])
            part.epochs.append(info.epoch)
            bits = round(info.logged["rows"] * info.samples)
            part.rows.append([row for row in range(NUM_ROWS) if bits >> row & 1])
            assert len(part.rows[-1]) == info.samples
            if info.evaluation is not None:
                part.evaluations.append((info.step, info.evaluation["loss"]))
            if info.step in saves:
                trainer.save()
        part.weights = {name: value.clone() for name, value in network.state_dict().items()}
    return part


def check(undisturbed: Part, rest: Part, step: int, tolerance: float) -> None:
    """The rest is what the undisturbed run did after that step."""
    assert rest.rows == undisturbed.rows[step:]
    assert rest.epochs == undisturbed.epochs[step:]
    assert rest.rates == undisturbed.rates[step:]
    torch.testing.assert_close(rest.losses, undisturbed.losses[step:], rtol=0, atol=tolerance)
    later = [found for found in undisturbed.evaluations if found[0] > step]
    assert [at for at, _ in rest.evaluations] == [at for at, _ in later]
    torch.testing.assert_close([loss for _, loss in rest.evaluations], [loss for _, loss in later], rtol=0, atol=1e-10)
    assert largest_difference(rest.weights, undisturbed.weights) <= tolerance
    for epoch in (0, 1):
        parts = zip(undisturbed.rows[:step] + rest.rows, undisturbed.epochs[:step] + rest.epochs, strict=True)
        assert sorted(row for rows, at in parts if at == epoch for row in rows) == list(range(NUM_ROWS))


@pytest.mark.parametrize("ready", [False, True], ids=["config", "ready"])
def test_the_rest_of_the_run_on_any_number_of_ranks(ranks: RankPool, tmp_path: Path, ready: bool) -> None:
    undisturbed, *_ = ranks.run(2, train_part, str(tmp_path / "whole"), "plain", ready, SAVES, None)
    assert undisturbed.epochs == [0] * 5 + [1] * 5 + [2] * 2
    for step in SAVES:
        checkpoint = str(tmp_path / "whole" / "checkpoints" / f"step_{step}")
        for world in (1, 2, 3):
            directory = str(tmp_path / f"{step}-{world}")
            for rest in ranks.run(world, train_part, directory, "plain", ready, (), checkpoint):
                check(undisturbed, rest, step, tolerance=0.0 if world == 2 else 1e-10)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_random_streams_and_statistics_go_on_too(ranks: RankPool, tmp_path: Path, world: int) -> None:
    """On the same number of ranks a run with dropout and BatchNorm is the same to the last bit."""
    whole = ranks.run(world, train_part, str(tmp_path / "whole"), "dropout", False, SAVES, None)
    for step in SAVES:
        checkpoint = str(tmp_path / "whole" / "checkpoints" / f"step_{step}")
        rest = ranks.run(world, train_part, str(tmp_path / str(step)), "dropout", False, (), checkpoint)
        for undisturbed, part in zip(whole, rest, strict=True):
            check(undisturbed, part, step, tolerance=0.0)


def test_a_resumed_run_saves_and_resumes_again(ranks: RankPool, tmp_path: Path) -> None:
    undisturbed, *_ = ranks.run(2, train_part, str(tmp_path / "whole"), "plain", False, (3,), None)
    first = str(tmp_path / "whole" / "checkpoints" / "step_3")
    ranks.run(3, train_part, str(tmp_path / "second"), "plain", False, (4,), first)
    second = str(tmp_path / "second" / "checkpoints" / "step_4")
    for rest in ranks.run(2, train_part, str(tmp_path / "third"), "plain", False, (), second):
        check(undisturbed, rest, 4, tolerance=1e-10)


def test_a_checkpoint_that_is_not_there_is_refused_on_all_ranks(ranks: RankPool, tmp_path: Path) -> None:
    with pytest.raises(RankError, match="there is no file or folder") as caught:
        ranks.run(2, train_part, str(tmp_path / "run"), "plain", False, (), str(tmp_path / "step_3"))
    assert {error.type_name for error in caught.value.errors.values()} == {"DataError"}
    assert sorted(caught.value.errors) == [0, 1]
