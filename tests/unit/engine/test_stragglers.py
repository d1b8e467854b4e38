from __future__ import annotations

import pytest

from drumline.engine.stragglers import Comparison, stragglers
from drumline.parallel.heartbeats import Beat


@pytest.mark.parametrize(
    ("own_s", "expected"),
    [
        ([0.1, 0.1, 0.1, 0.3], [3]),
        ([0.1, 0.1, 0.1, 0.11], []),  # 10% more
        ([0.010, 0.010, 0.010, 0.030], []),  # three times as much, and still nothing beside the update
        ([0.5, 0.1, 0.1, 0.5, 0.1], [0, 3]),
        ([0.1, 0.4], [1]),
        ([0.0, 0.0], []),
    ],
)
def test_slower_than_the_median_and_worth_telling(own_s: list[float], expected: list[int]) -> None:
    assert [each.rank for each in stragglers(own_s, update_s=1.0)] == expected


def beats(period: int, slow_s: float) -> list[Beat]:
    """Of ten updates a period; rank 1's own work takes slow_s an update, that of the others 0.1 s."""
    return [Beat(own_s=own * 10 * period, updates=10 * period) for own in (0.1, slow_s, 0.1)]


def test_a_rank_is_named_once_after_three_periods() -> None:
    comparison = Comparison()
    named = [comparison.take(beats(period, 0.5), 10.0) for period in range(7)]
    assert [[each.rank for each in found] for found in named] == [[], [], [], [1], [], [], []]
    said = str(named[3][0])
    assert said.startswith("rank 1 is steadily slower than the others: 500 ms of its own work in an update of 1000 ms")


def test_once_in_a_while_is_not_steady() -> None:
    comparison = Comparison()
    own, found = [0.0, 0.0, 0.0], []
    for period in range(12):
        own = [own[0] + 1.0, own[1] + (1.0 if period % 3 == 0 else 5.0), own[2] + 1.0]
        found += comparison.take([Beat(own_s=each, updates=10 * (period + 1)) for each in own], 10.0)
    assert found == []


def test_without_updates_nothing_is_compared() -> None:
    comparison = Comparison()
    assert [comparison.take([Beat(own_s=float(n)), Beat()], 10.0) for n in range(5)] == [[]] * 5
