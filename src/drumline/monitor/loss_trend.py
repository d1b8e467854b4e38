"""Whether a training loss goes the wrong way, told from noise."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

WINDOW = 20
"""Log lines that are taken together."""
NOISE = 4.0
"""Median absolute deviations of the best window that a later one must lie over it: 2.7 standard deviations."""
LEAST_SHARE = 0.01
"""Of the first window's loss: what a best loss is taken for that is smaller, so that a loss near 0 cannot multiply."""


class LossTrend:
    """Takes one log line's loss after the other."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._first = 0.0
        self._best = math.inf
        self._spread = 0.0
        self.last: float | None = None

    def add(self, loss: float) -> None:
        """The next line's."""
        self.last = loss
        if not math.isfinite(loss):
            return
        self._recent.append(loss)
        if len(self._recent) < WINDOW:
            return
        level = median(self._recent)
        if math.isinf(self._best):
            self._first = abs(level)
        if level < self._best:
            self._best = level
            self._spread = median(abs(each - level) for each in self._recent)

    @property
    def rise(self) -> float | None:
        """How far the newest window's median lies over the best one, as a share of it; 0 within noise, None: too early.

        A window is WINDOW lines; a loss below LEAST_SHARE of the first window's counts as that much.
        """
        if len(self._recent) < WINDOW:
            return None
        over = median(self._recent) - self._best
        scale = max(abs(self._best), LEAST_SHARE * self._first)
        return over / scale if over > NOISE * self._spread and scale > 0 else 0.0
