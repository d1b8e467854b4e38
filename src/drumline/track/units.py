"""Values as people read them, in the console and in the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any


def as_float(value: Any) -> float | None:
    """The value as a float, which may be NaN or infinite; None for whatever is not a number (bool included)."""
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else None


def as_finite(value: Any) -> float | None:
    """The value as a float; None where it is missing, no number, NaN or infinite."""
    number = as_float(value)
    return number if number is not None and math.isfinite(number) else None


def plain(value: Any, digits: int = 4) -> str:
    """A number with `digits` decimals, whole numbers without; very small and very large ones in powers of ten."""
    number = as_float(value)
    if number is None:
        return str(value)
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if not math.isfinite(number) or number == 0 or 10**-digits <= abs(number) < 1e6:
        return f"{number:.{digits}f}"
    return f"{number:.2e}"


def rate(value: Any, unit: str) -> str:
    """Units a second: `12,345 tokens/s`, with a decimal below 100."""
    number = as_float(value)
    text = str(value) if number is None else f"{number:,.0f}" if not abs(number) < 100 else f"{number:.1f}"
    return f"{text} {unit}/s"


def size(num_bytes: float) -> str:
    """Bytes in MiB, or GiB from 1 GiB on."""
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"


def duration(seconds: float | None) -> str:
    """Seconds as `0:03:12`, from a day on as `2d 03:04:05`; `unknown` for None and for what is not finite."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    minutes, second = divmod(round(max(seconds, 0)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}d {hour:02}:{minute:02}:{second:02}" if days else f"{hour}:{minute:02}:{second:02}"


def highest(value: Any) -> float | None:
    """The number itself, or the highest finite one of a list by rank; None where there is none."""
    values = value if isinstance(value, list) else [value]
    return max((number for part in values if (number := as_finite(part)) is not None), default=None)


def span(values: Sequence[Any], write: Callable[[float], str] = plain) -> str:
    """Lowest and highest number of a list, as `1.0000 to 2.5000`; one alone where they read the same."""
    numbers = [number for value in values if (number := as_float(value)) is not None]
    ends = dict.fromkeys(write(end) for end in (min(numbers), max(numbers))) if numbers else ["none"]
    return " to ".join(ends)


def as_text(value: Any) -> str:
    """A setting as text; lists of plain values are joined, nothing at all is `none`."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None or value == {} else str(value)


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested mappings and lists as (dotted key, value) pairs; a list of plain values stays one value."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and any(isinstance(inner, Mapping | list) for inner in value):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{prefix}[{index}]")
    elif prefix:
        yield prefix, value
