"""What rates by number of loader processes say of loader.num_workers: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NEAR_BEST = 0.95
"""Share of the best rate from which a number of loader processes is as good as any: each costs memory and a core."""


def best_workers(rows: Sequence[Mapping[str, Any]]) -> int:
    """The fewest loader processes with NEAR_BEST of the best rate."""
    best = max(row["rows_per_s"] for row in rows)
    return min(int(row["num_workers"]) for row in rows if row["rows_per_s"] >= NEAR_BEST * best)


def advice(rows: Sequence[Mapping[str, Any]]) -> str:
    """In words: fewer will do where training takes no more rows a second than they give."""
    workers = best_workers(rows)
    found = {int(row["num_workers"]): float(row["rows_per_s"]) for row in rows}
    text = f"loader.num_workers={workers}: {found[workers]:,.0f} rows/s, which more processes do not raise"
    if workers:
        least = min(found)
        text += f"; {least} suffice where training takes fewer than {found[least]:,.0f} rows/s"
    return text
