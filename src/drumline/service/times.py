"""Moments as requests say them."""

from __future__ import annotations

from datetime import UTC, datetime

from drumline.errors import ConfigError


def parse_time(name: str, text: str | None) -> float | None:
    """RFC 3339, or a date, as seconds since 1970; without an offset it is UTC. Raises ConfigError for anything else."""
    if text is None:
        return None
    try:
        # A plus that a query did not encode has become a space.
        moment = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return moment.timestamp()
    except (ValueError, OverflowError):
        raise ConfigError(f"{name}: {text[:60]!r} is no moment", "write it as 2026-01-02T03:04:05Z") from None
