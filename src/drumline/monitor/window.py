"""What a series of values was over a span of time: mean, extremes and percentiles, weighted by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Self

LONGEST_HOLD = 3.0
"""A value counts until the next one, but for this many usual distances at most: what a gap hid is not known."""


@dataclass(frozen=True)
class Window:
    """Statistics of one field of one GPU over a span, in the field's own unit."""

    count: int
    span_s: float
    """From the first value to the end."""
    last: float
    min: float
    max: float
    mean: float
    """Weighted by how long each value held, as are the percentiles: a sampler that was late tells no other story."""
    p50: float
    p95: float

    @classmethod
    def of(cls, times: Sequence[float], values: Sequence[float], end: float | None = None) -> Self | None:
        """Pure: of values at ascending times (s); None without any.

        The last value holds until `end`; for None, as long as the values usually did.
        """
        if not values:
            return None
        weights = _weights(times, end)
        total = sum(weights)
        ranked = sorted(zip(values, weights, strict=True))
        mean = sum(value * weight for value, weight in ranked) / total
        return cls(
            count=len(values),
            span_s=max(0.0, (times[-1] if end is None else end) - times[0]),
            last=values[-1],
            min=ranked[0][0],
            max=ranked[-1][0],
            mean=min(max(mean, ranked[0][0]), ranked[-1][0]),  # rounding must not lead out of the range
            p50=_percentile(ranked, 0.50 * total),
            p95=_percentile(ranked, 0.95 * total),
        )


class Total:
    """Count, extremes and mean of all values of a field that ever came, of which none is kept."""

    def __init__(self) -> None:
        self._count = 0
        self._first = self._last = (0.0, 0.0)
        self._range = (0.0, 0.0)
        self._weight = self._weighted = 0.0

    def add(self, now: float, value: float) -> None:
        """The value as of `now` (s), not before that of the last one, which it replaces where it is the same moment."""
        if not self._count:
            self._first, self._range = (now, value), (value, value)
        step = now - self._last[0]
        if self._count and step > 0:
            if self._count > 1:
                step = min(step, LONGEST_HOLD * self._weight / (self._count - 1))
            self._weight += step
            self._weighted += step * self._last[1]
        self._count += not self._count or step > 0
        self._last = (now, value)
        self._range = (min(self._range[0], value), max(self._range[1], value))

    def over(self, kept: Window) -> Window:
        """The same with what `kept`, of the newest values, has forgotten; percentiles stay those of the newest."""
        if self._count <= kept.count:
            return kept
        least, most = self._range
        mean = self._weighted / self._weight
        span = self._last[0] - self._first[0]
        return replace(kept, count=self._count, span_s=span, min=least, max=most, mean=min(max(mean, least), most))


def _weights(times: Sequence[float], end: float | None) -> list[float]:
    """How long each value held; equal weights where no time passes at all."""
    steps = [after - before for before, after in pairwise(times)]
    usual = median(steps) if steps else 0.0
    steps.append(usual if end is None else max(0.0, end - times[-1]))
    if usual > 0:
        steps = [min(step, LONGEST_HOLD * usual) for step in steps]
    return steps if sum(steps) > 0 else [1.0] * len(steps)


def _percentile(ranked: Sequence[tuple[float, float]], share: float) -> float:
    """The least value at or below which the series was for this much of its weight."""
    passed = 0.0
    for value, weight in ranked:
        passed += weight
        if passed >= share * (1 - 1e-12):
            return value
    return ranked[-1][0]
