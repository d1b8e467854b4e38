"""Numbers as people read them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from drumline.track.units import as_finite, as_float, as_text, duration, highest, leaves, plain, rate, size, span


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.31404, "2.3140"),
        (0.0, "0.0000"),
        (0.0001, "0.0001"),
        (0.00001234, "1.23e-05"),
        (-12.5, "-12.5000"),
        (3.4e38, "3.40e+38"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (1234567, "1,234,567"),
        (None, "None"),
        ("high", "high"),
    ],
)
def test_plain(value: Any, text: str) -> None:
    assert plain(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.6, "12,346 tokens/s"),
        (100, "100 tokens/s"),
        (99.94, "99.9 tokens/s"),
        (0.0, "0.0 tokens/s"),
        (math.nan, "nan tokens/s"),
        (math.inf, "inf tokens/s"),
    ],
)
def test_rate(value: float, text: str) -> None:
    assert rate(value, "tokens") == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00:00"),
        (59.6, "0:01:00"),
        (3723, "1:02:03"),
        (86399.6, "1d 00:00:00"),
        (2 * 86400 + 11045, "2d 03:04:05"),
        (-5, "0:00:00"),
        (None, "unknown"),
        (math.inf, "unknown"),
        (math.nan, "unknown"),
    ],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_size() -> None:
    assert [size(0), size(700 * 2**20), size(2**30), size(math.nan)] == ["0 MiB", "700 MiB", "1.0 GiB", "nan MiB"]


def test_only_numbers_count_as_numbers() -> None:
    assert [as_float(value) for value in (1, 1.5, True, "1", None)] == [1.0, 1.5, None, None, None]
    assert [as_finite(value) for value in (1.5, math.nan, math.inf, None)] == [1.5, None, None, None]


def test_leaves() -> None:
    value = {"a": {"b": [1, 2], "c": {}}, "d": [{"e": None}, [3]], "f": []}
    assert list(leaves(value)) == [("a.b", [1, 2]), ("a.c", {}), ("d[0].e", None), ("d[1]", [3]), ("f", [])]
    assert [as_text(leaf) for _, leaf in leaves(value)] == ["1, 2", "none", "none", "3", "none"]
    assert list(leaves({})) == list(leaves(None)) == []


@pytest.mark.parametrize(
    ("value", "found"),
    [(3, 3.0), ([1, 4.5, None, math.inf, "x"], 4.5), ([], None), ([math.nan], None), (None, None), (True, None)],
)
def test_highest(value: Any, found: float | None) -> None:
    assert highest(value) == found


def test_span() -> None:
    assert span([2.0, 0.5, None, "x"]) == "0.5000 to 2.0000"
    assert span([2**20, 3 * 2**20], size) == "1 MiB to 3 MiB"
    assert span([1.00001, 1.00002]) == "1.0000"
    assert span([]) == span(["x"]) == "none"
