"""What rows draw: distinct over ranks, loader processes and epochs, the same again in a second run."""

from __future__ import annotations

import os
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from drumline import Trainer
from drumline.data.stream import StridedStream
from drumline.parallel.strategy import Batch, Loss
from tests.rank_pool import RankPool
from tests.ranks.training import Case, config_of, fresh

NUM_ROWS = 26
EPOCHS = 3


def drawn_row(row: int, epoch: int = 0) -> dict[str, Any]:
    """A row with one draw of each of the three libraries, and the process that read it."""
    noise = [random.random(), float(np.random.rand()), float(torch.rand((), dtype=torch.float64))]
    return {"row": row, "noise": torch.tensor(noise, dtype=torch.float64), "pid": os.getpid(), "epoch": epoch}


class Stream(IterableDataset[dict[str, Any]]):
    """A stream that wants to know its epoch, and cannot be cut."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (drawn_row(row, self.epoch) for row in range(NUM_ROWS))


class Map(Dataset[dict[str, Any]]):
    """The same rows by number."""

    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, row: int) -> dict[str, Any]:
        return drawn_row(row)


@dataclass
class Seen:
    """What one rank's training was given, epoch by epoch."""

    rows: list[list[int]] = field(default_factory=list)
    noise: list[list[list[float]]] = field(default_factory=list)
    pids: list[set[int]] = field(default_factory=list)
    told: list[set[int]] = field(default_factory=list)


class Notes:
    """A task that keeps what it is given; rows that only take part have been given before."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def count(self, batch: Batch) -> int:
        return len(batch["row"])

    def check(self, batch: Batch) -> None:
        pass

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        self.batches.append(batch)
        return model(batch["noise"])

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        return Loss(outputs.square().sum())


def train(directory: str, kind: str, num_workers: int, persistent: bool) -> Seen:
    """Three epochs on this rank."""
    case = Case(directory, {"train": {"global_batch": 6, "micro_batch": 2, "epochs": EPOCHS}})
    loader = {"num_workers": num_workers, "persistent_workers": persistent, "prefetch_factor": 2}
    data: Any = StridedStream(Stream()) if kind == "stream" else Map()
    notes, seen = Notes(), Seen()
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    with warnings.catch_warnings(), Trainer(model, config_of(case, loader=loader), data, loss=notes) as trainer:
        warnings.filterwarnings("ignore", message="This DataLoader will create")  # more processes than cores
        for _ in range(EPOCHS):
            notes.batches.clear()
            for _ in trainer.steps(epochs=1):
                pass
            rows: dict[int, list[float]] = {}
            for batch in notes.batches:
                rows.update(zip(batch["row"].tolist(), batch["noise"].tolist(), strict=True))
            seen.rows.append(list(rows))
            seen.noise.append(list(rows.values()))
            seen.pids.append({pid for batch in notes.batches for pid in batch["pid"].tolist()})
            seen.told.append({epoch for batch in notes.batches for epoch in batch["epoch"].tolist()})
    return seen


def test_a_stream_with_three_persistent_loader_processes_over_three_epochs(ranks: RankPool, tmp_path: Path) -> None:
    first = ranks.run(2, train, fresh(tmp_path), "stream", 3, True, timeout=90)
    check_draws(first)
    assert all(seen.told == [{0}, {1}, {2}] for seen in first)
    assert all(len(seen.pids[0]) == 3 and seen.pids[0] == seen.pids[1] == seen.pids[2] for seen in first)
    again = ranks.run(2, train, fresh(tmp_path), "stream", 3, False, timeout=90)
    assert all(not seen.pids[0] & seen.pids[1] for seen in again)
    assert [(seen.rows, seen.noise) for seen in again] == [(seen.rows, seen.noise) for seen in first]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_map_style_data_set_draws_the_same_whatever_reads_it(
    ranks: RankPool, tmp_path: Path, num_workers: int
) -> None:
    first = ranks.run(2, train, fresh(tmp_path), "map", 3, True, timeout=90)
    check_draws(first)
    other = ranks.run(2, train, fresh(tmp_path), "map", num_workers, True, timeout=90)
    assert [(seen.rows, seen.noise) for seen in other] == [(seen.rows, seen.noise) for seen in first]


def check_draws(by_rank: list[Seen]) -> None:
    """Each row once an epoch over all ranks; no number is drawn twice, by whatever library."""
    for epoch in range(EPOCHS):
        assert Counter(row for seen in by_rank for row in seen.rows[epoch]) == Counter(range(NUM_ROWS))
    for library in range(3):
        drawn = [draws[library] for seen in by_rank for epoch in seen.noise for draws in epoch]
        assert len(set(drawn)) == len(drawn) == EPOCHS * NUM_ROWS
