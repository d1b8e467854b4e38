"""Bars, sparklines and charts of characters; each also in plain ASCII, for terminals that have no more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = " ▁▂▃▄▅▆▇█"
_ASCII_LEVELS = " _.:-=+*#"
_TRACK, _ASCII_TRACK = "·", "."


def bar(share: float | None, width: int, ascii_only: bool = False) -> str:
    """A bar of `width` characters, filled to a share of 0 to 1; blank for None."""
    if share is None or math.isnan(share):
        return " " * width
    share = min(max(share, 0.0), 1.0)
    if ascii_only:
        return ("#" * round(share * width)).ljust(width, _ASCII_TRACK)
    eighths = round(share * width * 8)
    if share > 0:
        eighths = max(eighths, 1)  # a little is told from nothing
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()).ljust(width, _TRACK)


def sparkline(values: Sequence[float | None], top: float, ascii_only: bool = False) -> str:
    """One character a value, from 0 to `top`; a blank where there is none, the lowest line for 0."""
    levels = _ASCII_LEVELS if ascii_only else _LEVELS
    return "".join(" " if value is None else levels[max(1, _level(value, top, 8))] for value in values)


def chart(values: Sequence[float | None], height: int, top: float, ascii_only: bool = False) -> list[str]:
    """The same over `height` lines, the highest first."""
    levels = _ASCII_LEVELS if ascii_only else _LEVELS
    lines = []
    for line in reversed(range(height)):
        lowest = 1 if line == 0 else 0
        cells = [
            " " if value is None else levels[min(max(_level(value, top, 8 * height) - 8 * line, lowest), 8)]
            for value in values
        ]
        lines.append("".join(cells))
    return lines


def resample(points: Iterable[tuple[float, float]], end: float, span_s: float, width: int) -> list[float | None]:
    """The mean of (time, value) pairs in each of `width` equal parts of the span before `end`; None in empty ones."""
    sums, counts = [0.0] * width, [0] * width
    for time, value in points:
        place = width - 1 - math.floor((end - time) * width / span_s)
        if 0 <= place < width:
            sums[place] += value
            counts[place] += 1
    return [total / count if count else None for total, count in zip(sums, counts, strict=True)]


def _level(value: float, top: float, steps: int) -> int:
    if math.isnan(value) or top <= 0:
        return 0
    return round(min(max(value / top, 0.0), 1.0) * steps)
