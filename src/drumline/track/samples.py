"""Statistics of repeated measurements that one slow sample does not move, and whether two sets of them differ."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
"""Confidence of the intervals."""

RESAMPLES = 2000
"""Of the bootstrap; Efron and Tibshirani 1993, chapter 13, ask for about 1000 or more for an interval."""

MINIMUM_EFFECT = 0.01
"""Relative difference below which nothing counts as a change: less than a card's clock moves a run by."""

MINIMUM_SAMPLES = 5
"""Of each side of a comparison: resamples of fewer say nothing of the spread."""

OUTLIER_LIMIT = 3.5
"""Modified z-score from which a sample is an outlier (Iglewicz and Hoaglin 1993)."""

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation of normally distributed values -> their standard deviation."""

SETTLED = 3
"""Samples in a row at the level of the second half that end the warm-up."""

SETTLED_WITHIN = 0.05
"""Relative distance from that level that is always near enough, however little the second half varies."""


@dataclass(frozen=True)
class Spread:
    """Samples of one quantity, in the unit that they were given in."""

    median: float
    mad: float
    """Median absolute deviation from the median."""
    low: float
    """Lower end of the median's 95% interval, by bootstrap."""
    high: float
    mean: float
    """Of all samples, outliers too: together they took that long."""
    count: int
    outliers: tuple[int, ...] = ()
    """Places of samples far off; they are in all the numbers above."""

    def to_json(self) -> dict[str, Any]:
        """As a result file holds it."""
        return {**asdict(self), "outliers": list(self.outliers)}


@dataclass(frozen=True)
class Comparison:
    """Two sets of samples, or why they cannot be compared."""

    verdict: Literal["noise", "change"]
    change: float
    """Difference of the medians, as a share of the baseline's; positive: now is larger."""
    low: float
    """Lower end of that difference's 95% interval."""
    high: float
    reason: str

    def to_json(self) -> dict[str, Any]:
        """As a result file holds it."""
        return asdict(self)


def spread(samples: Sequence[float]) -> Spread:
    """Summarise one or more samples. Outliers are named, never left out."""
    median = statistics.median(samples)
    mad = statistics.median(abs(sample - median) for sample in samples)
    low, high = _ends(resampled_medians(samples, 0))
    mean = statistics.fmean(samples)
    return Spread(median, mad, low, high, mean, len(samples), tuple(outliers(samples)))


def measured(samples: Sequence[float]) -> dict[str, Any]:
    """Spread and samples as a result file holds them."""
    return {**spread(samples).to_json(), "samples": list(samples)}


def outliers(samples: Sequence[float]) -> list[int]:
    """Places of samples with a modified z-score above OUTLIER_LIMIT; none where more than half of them are equal."""
    median = statistics.median(samples)
    sigma = MAD_TO_SIGMA * statistics.median(abs(sample - median) for sample in samples)
    return [i for i, sample in enumerate(samples) if sigma and abs(sample - median) / sigma > OUTLIER_LIMIT]


def num_warm_up(samples: Sequence[float]) -> int:
    """How many of the first samples were still on their way to the level of the others; at most half of them.

    The level is the second half's median. The warm-up has ended with the first of SETTLED samples in a row that are no
    further from it than an outlier would be, or than SETTLED_WITHIN of it.
    """
    half = len(samples) // 2
    later = samples[half:]
    if len(samples) < 2 * SETTLED:
        return 0
    level = statistics.median(later)
    sigma = MAD_TO_SIGMA * statistics.median(abs(sample - level) for sample in later)
    limit = max(OUTLIER_LIMIT * sigma, SETTLED_WITHIN * abs(level))
    near = [abs(sample - level) <= limit for sample in samples]
    return next((first for first in range(half) if all(near[first : first + SETTLED])), half)


def compare(baseline: Sequence[float], now: Sequence[float]) -> Comparison:
    """Whether the median has changed, and by how much.

    A change: the 95% interval of the relative difference of the medians, by percentile bootstrap (Efron and Tibshirani
    1993, chapter 13), does not hold 0, and the difference is MINIMUM_EFFECT or more. All else is noise. The interval
    knows the spread within the two runs, not what differs from one start of the same run to the next.
    """
    before, after = statistics.median(baseline), statistics.median(now)
    change = after / before - 1
    if min(len(baseline), len(now)) < MINIMUM_SAMPLES:
        reason = f"fewer than {MINIMUM_SAMPLES} samples on one side tell nothing apart"
        return Comparison("noise", change, change, change, reason)
    low, high = _ends(resampled_medians(now, 1) / resampled_medians(baseline, 2) - 1)
    interval = f"{100 * low:+.1f}% to {100 * high:+.1f}%"
    if low <= 0 <= high:
        return Comparison("noise", change, low, high, f"the difference may be none: {interval}")
    if abs(change) < MINIMUM_EFFECT:
        reason = f"below {100 * MINIMUM_EFFECT:.0f}%, as two starts of one run differ: {interval}"
        return Comparison("noise", change, low, high, reason)
    return Comparison("change", change, low, high, f"the difference is {interval}, at 95%")


def resampled_medians(samples: Sequence[float], seed: int) -> NDArray[np.float64]:
    """Medians of RESAMPLES sets drawn with replacement, [RESAMPLES]; the same ones for one seed each time."""
    values = np.asarray(samples, dtype=np.float64)
    drawn = np.random.Generator(np.random.PCG64(seed)).integers(len(values), size=(RESAMPLES, len(values)))
    medians: NDArray[np.float64] = np.median(values[drawn], axis=1)
    return medians


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
