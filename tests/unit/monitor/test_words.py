from __future__ import annotations

import math

import pytest

from drumline.monitor import words

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (words.percent(0.924), "92%"),
        (words.percent(None), "-"),
        (words.gib(61.25 * GIB), "61.2"),
        (words.gib(141 * GIB), "141"),
        (words.used_of(61 * GIB, 80 * GIB), "61.0/80.0"),
        (words.used_of(None, 80 * GIB), "-/80.0"),
        (words.used_of(5 * GIB, None), "5.0"),
        (words.watts(612.4, 700.0), "612/700 W"),
        (words.watts(612.4), "612 W"),
        (words.watts(None, 700.0), "-"),
        (words.celsius(61.0), "61 C"),
        (words.speed(25.31e9), "25.3 GB/s"),
        (words.speed(12.0), "12 B/s"),
        (words.speed(None), "-"),
        (words.span(48.2), "48 s"),
        (words.span(192), "3:12"),
        (words.span(7384), "2:03:04"),
        (words.span(457200), "5d 07h"),
        (words.span(math.inf), "-"),
        (words.number(2.31251), "2.313"),
        (words.number(51234.4), "51,234"),
        (words.number(math.nan), "nan"),
        (words.number(None), "-"),
    ],
)
def test_values_are_short(text: str, expected: str) -> None:
    assert text == expected
