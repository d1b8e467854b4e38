"""Robust statistics of samples, and what counts as a change."""

from __future__ import annotations

import random
import statistics

import pytest

from drumline.track.samples import LEVEL, compare, measured, num_warm_up, spread


def noisy(level: float, count: int = 30, seed: int = 0, sigma: float = 0.01) -> list[float]:
    """Samples around a level, with a relative spread."""
    draw = random.Random(seed)
    return [level * (1 + draw.gauss(0, sigma)) for _ in range(count)]


def test_one_slow_sample_is_named_and_moves_neither_median_nor_interval() -> None:
    calm = noisy(1.0)
    found, without = spread([*calm, 9.0]), spread(calm)
    assert found.outliers == (30,)
    assert found.count == 31
    assert found.median == pytest.approx(without.median, rel=0.005)
    assert found.high == pytest.approx(without.high, rel=0.01)
    assert found.mean > 1.2


def test_deviation_and_interval_are_what_they_are_called() -> None:
    found = spread([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (found.median, found.mad) == (3.0, 1.0)
    assert found.low <= found.median <= found.high
    assert measured([2.0])["samples"] == [2.0]
    assert spread([2.0]) == spread([2.0])
    assert (spread([2.0]).low, spread([2.0]).high, spread([2.0]).outliers) == (2.0, 2.0, ())


def test_the_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    held = [found.low <= 1.0 <= found.high for seed in range(200) for found in [spread(noisy(1.0, seed=seed))]]
    assert LEVEL - 0.06 <= statistics.fmean(held) <= 1.0


@pytest.mark.parametrize("slow", [0, 1, 4, 9])
def test_a_warm_up_ends_where_the_level_is_reached(slow: int) -> None:
    assert num_warm_up([5.0 - 0.3 * i for i in range(slow)] + noisy(1.0)) == slow


def test_what_never_settles_is_dropped_by_half_and_few_samples_are_kept() -> None:
    assert num_warm_up([float(2**i) for i in range(20, 0, -1)]) == 10
    assert num_warm_up([9.0, 1.0, 1.0]) == 0


def test_a_lone_sample_at_the_level_does_not_end_the_warm_up() -> None:
    assert num_warm_up([5.0, 1.0, 5.0, 5.0, *noisy(1.0)]) == 4


def test_the_same_run_twice_is_noise() -> None:
    verdicts = [compare(noisy(1.0, seed=seed), noisy(1.0, seed=1000 + seed)).verdict for seed in range(100)]
    assert verdicts.count("change") <= 5


@pytest.mark.parametrize("factor", [0.9, 1.05])
def test_a_change_is_found_with_its_sign_and_size(factor: float) -> None:
    found = compare(noisy(1.0), noisy(factor, seed=1))
    assert found.verdict == "change"
    assert found.change == pytest.approx(factor - 1, abs=0.01)
    assert found.low <= found.change <= found.high


def test_a_sure_difference_below_one_percent_is_noise() -> None:
    found = compare(noisy(1.0, sigma=1e-4), noisy(1.005, seed=1, sigma=1e-4))
    assert (found.verdict, "below 1%" in found.reason) == ("noise", True)
    assert found.low > 0


def test_few_samples_tell_nothing() -> None:
    found = compare([1.0] * 4, [2.0] * 30)
    assert (found.verdict, found.change) == ("noise", 1.0)
    assert "fewer than 5" in found.reason
