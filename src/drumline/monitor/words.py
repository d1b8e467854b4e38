"""Values in few characters, as a narrow terminal has room for; what nobody gave is a dash."""

from __future__ import annotations

import math

UNKNOWN = "-"


def percent(share: float | None) -> str:
    """A share of 0 to 1 as `92%`."""
    return UNKNOWN if share is None or math.isnan(share) else f"{100 * share:.0f}%"


def gib(num_bytes: float | None) -> str:
    """Bytes as GiB without the unit: three digits."""
    if num_bytes is None:
        return UNKNOWN
    value = num_bytes / 2**30
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}"


def used_of(used: float | None, whole: float | None) -> str:
    """Memory as `61.2/80.0`, in GiB; one number where the whole is not known."""
    return gib(used) if whole is None else f"{gib(used)}/{gib(whole)}"


def watts(power: float | None, limit: float | None = None) -> str:
    """Power as `612/700 W`."""
    if power is None:
        return UNKNOWN
    return f"{power:.0f} W" if limit is None else f"{power:.0f}/{limit:.0f} W"


def celsius(temperature: float | None) -> str:
    """A temperature as `61 C`."""
    return UNKNOWN if temperature is None else f"{temperature:.0f} C"


def speed(bytes_per_s: float | None) -> str:
    """Bytes a second with a decimal prefix, as `25.3 GB/s`."""
    if bytes_per_s is None:
        return UNKNOWN
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bytes_per_s >= size:
            return f"{bytes_per_s / size:.1f} {unit}"
    return f"{bytes_per_s:.0f} B/s"


def span(seconds: float | None) -> str:
    """Seconds as `48 s`, `3:12`, `2:03:04` or `5d 07h`."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    whole = round(max(seconds, 0.0))
    if whole < 60:
        return f"{whole} s"
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d {hours % 24:02}h"
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def number(value: float | None) -> str:
    """A loss or a rate in four digits."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 1e4 and math.isfinite(value) else f"{value:.4g}"
