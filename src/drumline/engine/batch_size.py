"""Which batch size to try next, as a pure decision over what the trials so far have taken of memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

GROWTH = 4
"""Most rows of a trial, in multiples of what has fitted: what two small ones foretell of a large one is not certain."""
WORTH = 1.5
"""A size so many times the one that was proven is worth another proof, which may compile the model once more."""
MOST_TRIALS = 16
"""By then the largest size that has fitted is good enough."""


class Peak(NamedTuple):
    """What one rank's fullest device held at most, and how much of it may be filled; bytes."""

    used: float
    limit: float


class Trial(NamedTuple):
    """A batch size that was tried on all ranks."""

    rows: int
    """0: what was held before any trial."""
    peaks: tuple[Peak, ...] | None
    """By rank; None: memory ran out on one of them."""
    is_proof: bool = True
    """Whether passes were just those of training; else uncompiled ones."""

    @property
    def fits(self) -> bool:
        """On all ranks."""
        return self.peaks is not None and all(peak.used <= peak.limit for peak in self.peaks)


class Verdict(NamedTuple):
    """What follows from the trials."""

    rows: int
    is_proof: bool
    """Of the next trial; without meaning where the search is over."""
    is_found: bool
    """Whether `rows` is the answer, and not the next trial."""


def decide(trials: Sequence[Trial], share: int, *, even: bool = False) -> Verdict:
    """Go on from these trials: small ones first, then the size that they foretell, as a proof.

    share: rows of a shard in an update, the most that is wanted. even: passes should all be of one size, for each size
    is compiled for itself. The answer is the largest proven size; 1 where nothing fits. Where trials begin with one of
    no rows, no size is tried that is not foretold to fit; else two rows are, whatever one took.
    """
    fitting = [trial.rows for trial in trials if trial.fits and trial.rows]
    proven = max((trial.rows for trial in trials if trial.fits and trial.is_proof), default=0)
    if proven >= share or len(trials) >= MOST_TRIALS:
        return Verdict(proven or 1, True, True)
    if not any(trial.rows for trial in trials):
        return Verdict(1, share == 1, False)
    most = min(_bound(trials), share)
    if not fitting or most < 1:
        return Verdict(1, True, True)
    foretold = _foretold(trials)
    if foretold is None and most > 2:
        return Verdict(2, False, False)
    wanted = most if foretold is None else min(most, foretold)
    candidate = best_size(share, max(1, int(wanted)), even=even)
    if proven and candidate < WORTH * proven:
        return Verdict(proven, True, True)
    if candidate > GROWTH * max(fitting):
        return Verdict(GROWTH * max(fitting), False, False)
    return Verdict(candidate, True, False)


def best_size(share: int, most: int, *, even: bool = False) -> int:
    """The size of passes of at most `most` rows that makes the fewest of them, and no larger than that takes.

    even: rather one that divides the share, if it is at least half of that.
    """
    size = math.ceil(share / math.ceil(share / most))
    if even:
        divisor = next(each for each in range(size, 0, -1) if share % each == 0)
        return divisor if 2 * divisor >= size else size
    return size


def _bound(trials: Sequence[Trial]) -> int | float:
    """Less than what did not fit; where memory ran out, and nothing was measured, half of it."""
    return min((t.rows // 2 if t.peaks is None else t.rows - 1 for t in trials if not t.fits), default=math.inf)


def _foretold(trials: Sequence[Trial]) -> float | None:
    """The rows that fit each rank if memory grows in a straight line; None before two sizes were measured.

    The line goes through the two largest sizes; or where one was proven, whose passes may be compiled and take less,
    through that one and what the small ones say of no rows at all.
    """
    measured = {t.rows: t.peaks for t in sorted(trials) if t.peaks is not None}
    if len(measured) > 2:
        measured.pop(0, None)  # before any pass there were no gradients
    proven = max((t.rows for t in trials if t.peaks is not None and t.is_proof), default=0)
    if len(measured) < 2:
        return None
    least = math.inf
    for rank, (_, limit) in enumerate(next(iter(measured.values()))):
        points = [(rows, peaks[rank].used) for rows, peaks in measured.items()]
        line = Line.through(*points[-2:])
        if proven > points[0][0]:
            line = Line.through((0, Line.through(*points[:2]).at(0)), (proven, measured[proven][rank].used))
        least = min(least, line.reaches(limit))
    return least


class Line(NamedTuple):
    """Bytes over rows."""

    start: float
    slope: float

    @classmethod
    def through(cls, first: tuple[float, float], second: tuple[float, float]) -> Line:
        """The one through two points (rows, bytes)."""
        slope = (second[1] - first[1]) / (second[0] - first[0])
        return cls(first[1] - first[0] * slope, slope)

    def at(self, rows: float) -> float:
        """Bytes."""
        return self.start + self.slope * rows

    def reaches(self, limit: float) -> float:
        """Rows with which it does; infinite where more rows take no more bytes."""
        return (limit - self.start) / self.slope if self.slope > 0 else math.inf
