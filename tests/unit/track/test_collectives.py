"""Bandwidths of collectives, and the advice that comes of them."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.track.collectives import bandwidths, bucket_advice, enough_bytes


@pytest.mark.parametrize(
    ("collective", "factor"), [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("broadcast", 1.0)]
)
def test_bus_bandwidth_of_four_ranks(collective: str, factor: float) -> None:
    assert bandwidths(collective, 1000, 0.5, 4) == (2000.0, 2000.0 * factor)


def rows(*bandwidth: float) -> list[dict[str, Any]]:
    """An all-reduce of 1, 2, 4, ... MiB with these bus bandwidths."""
    return [
        {"collective": "all_reduce", "bytes": 2**20 << i, "bus_bytes_per_s": value} for i, value in enumerate(bandwidth)
    ]


def test_the_bucket_is_the_smallest_from_which_all_larger_ones_are_fast() -> None:
    found = rows(10, 95, 50, 91, 100, 99)
    assert enough_bytes(found) == 8 * 2**20
    assert bucket_advice(found).startswith("parallel.bucket_mb=8 or more")


def test_other_collectives_do_not_count() -> None:
    assert enough_bytes([{"collective": "broadcast", "bytes": 1, "bus_bytes_per_s": 9.0}]) is None


def test_no_size_is_advised_where_the_largest_is_the_first_or_too_slow() -> None:
    assert "measure larger ones" in bucket_advice(rows(10, 50, 100))
    assert "no bucket size" in bucket_advice(rows(10, 100, 50))
