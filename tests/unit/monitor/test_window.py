from __future__ import annotations

import pytest

from drumline.monitor.window import Total, Window


def test_nothing_without_values() -> None:
    assert Window.of([], []) is None


def test_of_values_at_even_distances() -> None:
    window = Window.of([float(second) for second in range(100)], [float(second) for second in range(100)])
    assert window is not None
    assert (window.count, window.span_s, window.last) == (100, 99.0, 99.0)
    assert (window.min, window.max) == (0.0, 99.0)
    assert window.mean == pytest.approx(49.5)
    assert (window.p50, window.p95) == (49.0, 94.0)


def test_a_value_counts_until_the_next_one() -> None:
    window = Window.of([0.0, 1.0, 3.0], [1.0, 4.0, 1.0], end=4.0)
    assert window is not None
    assert window.mean == pytest.approx((1 * 1 + 4 * 2 + 1 * 1) / 4)
    assert window.p50 == 1.0 and window.p95 == 4.0
    assert window.span_s == 4.0


def test_a_gap_gives_no_value_more_than_its_due() -> None:
    """The sampler hung for an hour after one busy second: the hour was not busy."""
    times = [*(float(second) for second in range(60)), 3660.0, 3661.0]
    window = Window.of(times, [0.0] * 59 + [1.0, 0.0, 0.0])
    assert window is not None
    assert window.mean == pytest.approx(3 / 64)


def test_a_total_heeds_gaps_and_values_that_are_replaced() -> None:
    total = Total()
    for second in range(10):
        total.add(float(second), 0.0)
    total.add(10.0, 0.0)
    total.add(10.0, 1.0)
    total.add(3600.0, 0.0)
    kept = Window.of([3600.0], [0.0])
    assert kept is not None
    whole = total.over(kept)
    assert (whole.count, whole.span_s, whole.max) == (12, 3600.0, 1.0)
    assert whole.mean == pytest.approx(3 / 13)
    many = Window.of([float(second) for second in range(20)], [0.0] * 20)
    assert many is not None and total.over(many) == many


def test_one_value_and_values_of_one_moment() -> None:
    for window in (Window.of([5.0], [0.3]), Window.of([5.0], [0.3], end=9.0), Window.of([5.0, 5.0], [0.3, 0.3])):
        assert window is not None
        assert window.mean == window.p50 == window.p95 == window.min == window.max == 0.3


def test_rounding_leads_the_mean_out_of_no_range() -> None:
    window = Window.of([index * 0.1 for index in range(1000)], [0.1] * 1000)
    assert window is not None and window.min <= window.mean <= window.max
