"""Bandwidths of collectives, and what they say of the size of gradient buckets: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NEAR_PEAK = 0.9
"""Share of the highest bus bandwidth from which a message is large enough."""


def bandwidths(collective: str, size: int, seconds: float, world: int) -> tuple[float, float]:
    """Algorithm and bus bandwidth in bytes a second of one call over `world` ranks.

    nccl-tests' definitions (doc/PERFORMANCE.md there): algorithm bandwidth is size over time; bus bandwidth is what the
    slowest link has to carry whatever the number of ranks: times 2(n-1)/n for an all-reduce, (n-1)/n for an all-gather
    and a reduce-scatter, 1 for a broadcast.
    """
    factor = {"all_reduce": 2 * (world - 1) / world, "broadcast": 1.0}.get(collective, (world - 1) / world)
    algorithm = size / seconds
    return algorithm, algorithm * factor


def enough_bytes(rows: Sequence[Mapping[str, Any]], collective: str = "all_reduce") -> int | None:
    """The smallest message from which on all have NEAR_PEAK of the highest bus bandwidth; None without rows.

    Smaller buckets waste bandwidth, larger ones only begin later.
    """
    own = sorted((row for row in rows if row["collective"] == collective), key=lambda row: row["bytes"])
    peak = max((row["bus_bytes_per_s"] for row in own), default=0.0)
    found = None
    for row in reversed(own):
        if row["bus_bytes_per_s"] < NEAR_PEAK * peak:
            break
        found = int(row["bytes"])
    return found


def bucket_advice(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the all-reduce's bandwidths say of parallel.bucket_mb."""
    size = enough_bytes(rows)
    if size is None:
        return "no bucket size can be told: the bandwidth of the all-reduce falls with the largest messages"
    largest = max(row["bytes"] for row in rows)
    if size == largest and len({row["bytes"] for row in rows}) > 1:
        return (
            f"the all-reduce is still getting faster at the largest message ({size / 2**20:g} MiB): measure larger ones"
        )
    return (
        f"parallel.bucket_mb={max(1, -(-size // 2**20))} or more: from {size / 2**20:g} MiB on an all-reduce has "
        f"{100 * NEAR_PEAK:.0f}% of its highest bandwidth"
    )
