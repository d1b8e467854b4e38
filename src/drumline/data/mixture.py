"""Several sources as one data set, each with the number of passes that an epoch makes over it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Dataset

from drumline.config.data import WeightedPaths
from drumline.data.order import Rows, shuffled
from drumline.data.schema import Schema

_DIGITS = 6
"""Decimals of a number of rows that count, so that 100 rows with weight 0.07 are 7 and not 7.000000000000001."""


class Mixture(Dataset[Any]):
    """The rows of several map-style data sets, one after the other.

    A part of n rows with weight w has ceil(n * w) places in each epoch, at least one: each of its rows comes floor(w)
    or ceil(w) times. From epoch to epoch the places go round through the part in one drawn order, so that over 1/w
    epochs each row comes once (where n * w is no whole number, the first few of the next round with it).
    """

    def __init__(self, parts: Sequence[tuple[Dataset[Any], float]], schema: Schema | None = None) -> None:
        self.parts: tuple[Any, ...] = tuple(rows for rows, _ in parts)
        self.weights = tuple(weight for _, weight in parts)
        self.schema = schema
        """Of all parts together, where they are records."""
        self._ends = list(accumulate(len(part) for part in self.parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Any:
        part, row = self._place(index)
        return self.parts[part][row]

    def __getitems__(self, indexes: Sequence[int]) -> list[Any]:
        """Read several rows, those of one part at once where it can."""
        found: dict[int, Any] = {}
        places = [self._place(index) for index in indexes]
        for number, rows in enumerate(self.parts):
            own = [place for place, (part, _) in enumerate(places) if part == number]
            if own:
                found.update(zip(own, _read(rows, [places[place][1] for place in own]), strict=True))
        return [found[place] for place in range(len(places))]

    @property
    def rows_per_epoch(self) -> int:
        """Rows that one epoch has, the same in each."""
        return sum(self._counts())

    def epoch_order(self, seed: int, epoch: int, *, shuffle: bool) -> Rows:
        """The rows of one epoch, int64 [rows_per_epoch]: part by part, or in an order drawn from seed and epoch."""
        chosen = [self._chosen(part, count, seed, epoch, shuffle) for part, count in enumerate(self._counts())]
        order = np.concatenate([*chosen, np.empty(0, dtype=np.int64)])
        return shuffled(order, seed, epoch) if shuffle else order

    def _chosen(self, part: int, count: int, seed: int, epoch: int, shuffle: bool) -> Rows:
        """The places of one part in one epoch, as rows of the mixture."""
        size = len(self.parts[part])
        if not size:
            return np.empty(0, dtype=np.int64)
        places = (np.arange(count, dtype=np.int64) + epoch * count % size) % size
        if shuffle and count % size:
            # One order for all epochs: drawn anew for each, a row could come a second time before another's first.
            generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(part,))))
            places = generator.permutation(size)[places]
        return places + (self._ends[part] - size)

    def _counts(self) -> list[int]:
        return [
            max(1, math.ceil(round(len(rows) * weight, _DIGITS))) if len(rows) else 0
            for rows, weight in zip(self.parts, self.weights, strict=True)
        ]

    def _place(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        part = bisect_right(self._ends, index)
        return part, index - (self._ends[part] - len(self.parts[part]))


def _read(rows: Any, indexes: list[int]) -> list[Any]:
    """Read rows of a map-style data set, at once where it can."""
    at_once = getattr(rows, "__getitems__", None)
    return [rows[index] for index in indexes] if at_once is None else list(at_once(indexes))


def mixed(parts: Sequence[tuple[Any, float]], schema: Schema | None = None) -> Any:
    """The one data set itself where there is one that each epoch passes over once, else a Mixture."""
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    return Mixture(parts, schema)


class WeightedSource(NamedTuple):
    """Paths that are one source, how often an epoch goes through it, and the setting that names them."""

    paths: list[str]
    weight: float
    setting: str


def sources_of(paths: Iterable[str | WeightedPaths], setting: str) -> list[WeightedSource]:
    """The sources of a setting: plain paths are together one of weight 1, each section with a weight is another."""
    plain: list[str] = []
    weighted = []
    for number, entry in enumerate(paths):
        if isinstance(entry, str):
            plain.append(entry)
        else:
            weighted.append(WeightedSource(entry.paths, entry.weight, f"{setting}.{number}.paths"))
    return [WeightedSource(plain, 1.0, setting), *weighted] if plain else weighted
