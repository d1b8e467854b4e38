"""Rows that count as many units as they are told, and what feeds need around them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from drumline.data.windows import Window
from drumline.parallel.strategy import Batch, Loss


class CountUnits:
    """A task whose batches say themselves what they count; a mean over nothing must not be run."""

    needs_count = True

    def count(self, batch: Batch) -> int:
        return int(batch["units"].sum())

    def check(self, batch: Batch) -> None:
        pass

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        raise AssertionError("feeds do not run the model")

    def loss(self, outputs: Any, batch: Batch) -> Loss:
        raise AssertionError("feeds do not run the model")


class CountedSum(CountUnits):
    """The same for a loss that is a sum, which may be over nothing."""

    needs_count = False


class Rows(Dataset[dict[str, Any]]):
    """Row i counts units[i] and has noise; notes which rows were read."""

    def __init__(self, units: Sequence[int]) -> None:
        self._units = units
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self._units)

    def __getitem__(self, row: int) -> dict[str, Any]:
        self.read.append(row)
        return {"row": row, "units": self._units[row], "noise": torch.rand(())}


class Numbers(IterableDataset[dict[str, Any]]):
    """A stream of rows that can be cut; parts are contiguous, as those of files are. Row i has noise and units(i)."""

    def __init__(self, rows: Sequence[int], units: Callable[[int], int] = lambda row: 1) -> None:
        self._rows = rows
        self._units = units
        self.epoch = 0

    def shard(self, num_shards: int, index: int) -> Numbers:
        size, longer = divmod(len(self._rows), num_shards)
        start = index * size + min(index, longer)
        part = Numbers(self._rows[start : start + size + (index < longer)], self._units)
        part.epoch = self.epoch
        return part

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self._rows:
            noise = [random.random(), float(np.random.rand()), float(torch.rand(()))]
            yield {"row": row, "units": self._units(row), "epoch": self.epoch, "noise": torch.tensor(noise)}


def row_ids(window: Window) -> list[list[int]]:
    """Rows of each micro-batch, those without weight included."""
    return [m.batch["row"].tolist() for m in window.micro_batches]


def trained(windows: Sequence[Window]) -> list[int]:
    """Rows that count, over all windows."""
    return [row for w in windows for m in w.micro_batches if m.weight for row in m.batch["row"].tolist()]


def noise_of(windows: Sequence[Window]) -> Tensor:
    """What the rows of the windows drew."""
    return torch.cat([m.batch["noise"] for w in windows for m in w.micro_batches])
