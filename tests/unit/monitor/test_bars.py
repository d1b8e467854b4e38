from __future__ import annotations

import math

import pytest

from drumline.monitor.bars import bar, chart, resample, sparkline


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.0, "····"),
        (0.001, "▏···"),
        (0.5, "██··"),
        (0.53125, "██▏·"),
        (1.0, "████"),
        (1.7, "████"),
        (-1.0, "····"),
        (None, "    "),
        (math.nan, "    "),
    ],
)
def test_a_bar_has_its_width_whatever_the_share(share: float | None, expected: str) -> None:
    assert bar(share, 4) == expected
    assert len(bar(share, 7, ascii_only=True)) == 7


def test_without_unicode_there_are_plain_characters() -> None:
    assert bar(0.5, 4, ascii_only=True) == "##.."
    assert sparkline([0.0, None, 0.5, 1.0], 1.0, ascii_only=True).isascii()
    assert "".join(chart([0.0, 0.5, 1.0], 2, 1.0, ascii_only=True)).isascii()


def test_a_sparkline_tells_nothing_from_zero() -> None:
    assert sparkline([None, 0.0, 0.5, 1.0, 2.0], 1.0) == " ▁▄██"


def test_a_chart_is_the_same_in_several_lines() -> None:
    assert chart([0.0, 0.25, 0.75, 1.0, None], 2, 1.0) == ["  ▄█ ", "▁▄██ "]
    assert chart([3.0, 4.0], 1, 4.0) == ["▆█"]


def test_values_are_spread_over_the_span_and_gaps_stay_gaps() -> None:
    points = [(0.0, 9.0), (60.1, 1.0), (61.0, 3.0), (99.9, 5.0), (100.0, 7.0)]
    assert resample(points, end=100.0, span_s=40.0, width=4) == [2.0, None, None, 6.0]
    assert resample([], 100.0, 40.0, 2) == [None, None]
