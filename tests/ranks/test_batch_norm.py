"""BatchNorm's statistics: rank 0's on every rank after each update, and untouched by ranks that only take part."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from drumline import StepInfo, Trainer
from drumline.engine.process import seed_window
from drumline.parallel.strategy import Batch
from tests.rank_pool import RankError, RankPool
from tests.ranks.training import LENGTH, WIDTH, Case, MaskedRows, config_of, fresh, largest_difference


class Normalised(nn.Module):
    """BatchNorm, dropout, and a counter that training moves."""

    ticks: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.norm = nn.BatchNorm1d(LENGTH)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(LENGTH * WIDTH, 1)
        self.register_buffer("ticks", torch.zeros((), dtype=torch.int64))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.ticks += 1
        outputs: Tensor = self.out(self.drop(self.norm(x)).flatten(1)).squeeze(-1)
        return outputs


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    error: Tensor = (model(batch["x"]) - batch["y"][:, 0]).square().mean()
    return error


def noisy_error(model: nn.Module, batch: Batch) -> Tensor:
    """Draws from every stream."""
    return squared_error(model, batch) * (1 + random.random() + np.random.random())


def states(directory: str, train: dict[str, Any]) -> list[dict[str, Tensor]]:
    """The model's state after each update."""
    seen = []
    case = Case(directory, {"train": train})
    with Trainer(Normalised(), config_of(case), MaskedRows(36), loss=squared_error) as trainer:
        for _ in trainer.steps():
            seen.append({name: value.clone() for name, value in trainer.model.state_dict().items()})
    return seen


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("micro", ["auto", 2])
def test_statistics_are_rank_0s_after_every_update(
    ranks: RankPool, tmp_path: Path, world: int, micro: int | str
) -> None:
    settings = {"global_batch": 12, "max_steps": 3, "micro_batch": micro, "shuffle": False}
    zero, *others = ranks.run(world, states, fresh(tmp_path), settings)
    for other in others:
        for mine, theirs in zip(zero, other, strict=True):
            assert largest_difference(mine, theirs) == 0
    passes = 1 if micro == "auto" else 12 // world // 2
    assert [int(state["ticks"]) for state in zero] == [passes, 2 * passes, 3 * passes]
    rows = MaskedRows(36)
    mean, share = torch.zeros(LENGTH, dtype=torch.float64), 12 // world
    for first in range(0, 36, 12):
        for start in range(first, first + share, share // passes):
            batch = torch.stack([rows[i]["x"] for i in range(start, start + share // passes)])
            mean = 0.9 * mean + 0.1 * batch.mean((0, 2))
    torch.testing.assert_close(zero[-1]["norm.running_mean"], mean)


def traces(directory: str, broadcast: bool) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """State after two updates of two rows; what the streams give after the last, and what they give untouched."""
    parallel = {"kind": "ddp", "broadcast_buffers": broadcast, "timeout_s": 20}
    case = Case(directory, {"train": {"global_batch": 2, "max_steps": 2, "shuffle": False}, "parallel": parallel})
    drawn: list[Tensor] = []

    def draw() -> Tensor:
        return torch.tensor([float(torch.rand(())), random.random(), np.random.random()])

    def look(trainer: Trainer, info: StepInfo) -> None:
        drawn[:] = [draw()]
        seed_window(0, info.epoch, info.step - 1, dist.get_rank())
        drawn.append(draw())

    with Trainer(Normalised(), config_of(case), MaskedRows(4), loss=noisy_error, callbacks=[look]) as trainer:
        trainer.fit()
        state = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    return state, drawn[0], drawn[1]


def test_a_rank_without_rows_leaves_no_trace(ranks: RankPool, tmp_path: Path) -> None:
    # With statistics of each rank's own, what a rank without rows does to them can be seen.
    zero, one, two = ranks.run(3, traces, fresh(tmp_path), False)
    for state, drawn, untouched in (zero, one):
        assert int(state["ticks"]) == 2
        assert (drawn != untouched).all()
    state, drawn, untouched = two
    assert int(state["ticks"]) == 0
    assert state["norm.running_mean"].count_nonzero() == 0
    assert (drawn == untouched).all()
    shared = ranks.run(3, traces, fresh(tmp_path), True)
    for state, _, _ in shared:
        assert largest_difference(state, shared[0][0]) == 0


class PerFeature(nn.Module):
    """BatchNorm over single values: a micro-batch of one sample has one value a channel."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.out = nn.Linear(WIDTH, 1)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.norm(x[:, 0])).squeeze(-1)
        return outputs


@dataclass
class Tailed:
    """What one rank saw of a run whose last window leaves it a single sample."""

    states: list[dict[str, Tensor]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)
    loaded: float = 0.0
    """The last evaluation, by a new trainer that has loaded the checkpoint."""


def train_to_a_tail(folder: str, num_rows: int) -> Tailed:
    seen, model = Tailed(), PerFeature()
    train = {"global_batch": 4, "epochs": 2, "shuffle": False}
    case = Case(f"{folder}/first", {"train": train, "checkpoint": {"at_end": True}})
    held_out = MaskedRows(7)
    with Trainer(model, config_of(case), MaskedRows(num_rows), loss=squared_error, eval_data=held_out) as trainer:
        for info in trainer.steps():
            assert info.logged is not None
            seen.losses.append(info.logged["loss"])
            seen.states.append({name: value.clone() for name, value in model.state_dict().items()})
            if info.evaluation is not None:
                seen.evaluations.append(info.evaluation["loss"])
    again = Case(f"{folder}/second", {"train": train})
    other = PerFeature()
    with Trainer(other, config_of(again), MaskedRows(num_rows), loss=squared_error, eval_data=held_out) as trainer:
        trainer.load(f"{folder}/first/checkpoints/step_{len(seen.losses)}")
        seen.loaded = trainer.evaluate()["loss"]
    return seen


def by_hand(num_rows: int, shares: list[list[range]]) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and weights of a plain loop over windows of rank shares; statistics are moved by rank 0's alone."""
    model, rows, losses = PerFeature(), MaskedRows(num_rows), []
    for window in shares:
        losses.append(0.0)
        model.zero_grad()
        kept: dict[str, Tensor] = {}
        before = {name: value.clone() for name, value in model.named_buffers()}
        for rank, share in enumerate(window):
            batch = torch.utils.data.default_collate([rows[i] for i in share])
            for name, value in model.named_buffers():
                value.copy_(before[name])
            model.norm.train(len(share) > 1)
            loss = squared_error(model, batch) * (len(share) / sum(map(len, window)))
            loss.backward()
            losses[-1] += loss.item()
            if rank == 0:
                kept = {name: value.clone() for name, value in model.named_buffers()}
        for name, value in model.named_buffers():
            value.copy_(kept[name])
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p.sub_(p.grad, alpha=0.05)
    return losses, dict(model.state_dict())


@pytest.mark.parametrize(("world", "num_rows"), [(1, 9), (2, 10), (2, 9), (2, 11)])
def test_a_tail_of_one_sample_trains(ranks: RankPool, tmp_path: Path, world: int, num_rows: int) -> None:
    """World 2: one sample each; one sample and a rank that takes part; one sample on rank 1 alone."""
    windows = [range(first, min(first + 4, num_rows)) for first in range(0, num_rows, 4)]
    shares = []
    for window in windows:
        larger = -(-len(window) // world)
        shares.append([part for part in (window[:larger], window[larger:]) if part])
    losses, weights = by_hand(num_rows, shares * 2)
    found = ranks.run(world, train_to_a_tail, str(tmp_path), num_rows)
    for seen in found:
        torch.testing.assert_close(seen.losses, losses, rtol=0, atol=1e-10)
        assert largest_difference(seen.states[-1], weights) < 1e-10
        for mine, first in zip(seen.states, found[0].states, strict=True):
            assert largest_difference(mine, first) == 0
        assert len(seen.evaluations) == 2
        assert seen.loaded == seen.evaluations[-1] == found[0].evaluations[-1]


def train_on_own_rows(directory: str, config: dict[str, Any]) -> None:
    with Trainer(Normalised(), config_of(Case(directory, config)), MaskedRows(8), loss=squared_error) as trainer:
        trainer.fit()


def test_synchronised_statistics_are_refused_on_cpu(ranks: RankPool, tmp_path: Path) -> None:
    config = {"train": {"global_batch": 4, "epochs": 1}, "parallel": {"kind": "ddp", "sync_batch_norm": True}}
    with pytest.raises(RankError, match="GPUs only") as caught:
        ranks.run(2, train_on_own_rows, fresh(tmp_path), config)
    assert {error.type_name for error in caught.value.errors.values()} == {"ConfigError"}
    assert sorted(caught.value.errors) == [0, 1]
