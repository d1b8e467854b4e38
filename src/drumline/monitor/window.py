"""What a series of values was over a span of time: mean, extremes and percentiles, weighted by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
