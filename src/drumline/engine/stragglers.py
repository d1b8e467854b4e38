"""Which ranks are steadily slower than the others, told from their heart-beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from drumline.parallel.heartbeats import Beat

SLOWER = 1.2
"""A straggler's own work takes this many times the median's,"""
SHARE = 0.1
"""and keeps the others waiting for more than this share of an update."""
STEADY = 3
"""Periods in a row before a rank is named."""


class Straggler(NamedTuple):
    """A rank that the others wait for."""

    rank: int
    own_s: float
    """Its own work in an update: reading rows, callbacks, all micro-batches but the last, as the host sees them."""
    median_s: float
    update_s: float
    """A whole update."""

    def __str__(self) -> str:
        return (
            f"rank {self.rank} is steadily slower than the others: {1000 * self.own_s:.0f} ms of its own work in an "
            f"update of {1000 * self.update_s:.0f} ms, where the median is {1000 * self.median_s:.0f} ms"
        )


def stragglers(own_s: Sequence[float], update_s: float) -> list[Straggler]:
    """Those of one period. own_s: seconds of own work an update, by rank; update_s: seconds of a whole update."""
    middle = median(own_s)
    slow = [rank for rank, own in enumerate(own_s) if own > SLOWER * middle and own - middle > SHARE * update_s]
    return [Straggler(rank, own_s[rank], middle, update_s) for rank in slow]


class Comparison:
    """Compares ranks from period to period, and names each straggler once."""

    def __init__(self) -> None:
        self._before: list[Beat] | None = None
        self._in_a_row: Mapping[int, int] = {}
        self._named: set[int] = set()

    def take(self, beats: Sequence[Beat], elapsed_s: float) -> list[Straggler]:
        """Take in every rank's beat at the end of a period; returns those that are to be named now."""
        before, self._before = self._before, list(beats)
        if before is None or len(beats) < 2:
            return []
        updates = [now.updates - then.updates for now, then in zip(beats, before, strict=True)]
        if min(updates) < 1:
            return []
        own = [(b.own_s - a.own_s) / n for b, a, n in zip(beats, before, updates, strict=True)]
        found = stragglers(own, elapsed_s / max(updates))
        self._in_a_row = {each.rank: self._in_a_row.get(each.rank, 0) + 1 for each in found}
        steady = [each for each in found if self._in_a_row[each.rank] >= STEADY and each.rank not in self._named]
        self._named |= {each.rank for each in steady}
        return steady
