"""A loss that rises is told from one that is noisy."""

from __future__ import annotations

import math
import random

import pytest

from drumline.monitor.loss_trend import WINDOW, LossTrend


def highest_rise(losses: list[float]) -> float:
    trend, rises = LossTrend(), []
    for loss in losses:
        trend.add(loss)
        rises.append(trend.rise or 0.0)
    return max(rises)


def noisy(level: float, spread: float, count: int = 400) -> list[float]:
    draw = random.Random(3)
    return [level + draw.gauss(0, spread) for _ in range(count)]


def test_it_takes_a_window_to_say_anything() -> None:
    trend = LossTrend()
    for _ in range(WINDOW - 1):
        trend.add(2.0)
    assert trend.rise is None
    trend.add(2.0)
    assert trend.rise == 0.0


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.5])
def test_noise_is_no_rise(spread: float) -> None:
    assert highest_rise(noisy(2.0, spread)) < 0.5


def test_a_falling_loss_is_no_rise() -> None:
    falling = [2 + 8 * math.exp(-step / 60) for step in range(400)]
    assert highest_rise([a + b for a, b in zip(falling, noisy(0.0, 0.05), strict=True)]) < 0.1


def test_a_divergence_is_one() -> None:
    losses = noisy(2.0, 0.05, 100) + [2.0 * 1.05**step for step in range(60)]
    assert highest_rise(losses[:100]) == 0.0
    assert highest_rise(losses) > 5


def test_a_loss_that_is_all_but_nothing_cannot_multiply() -> None:
    learned = [math.exp(-step / 10) for step in range(200)]
    assert highest_rise(learned + [1e-4] * 100) < 0.5


def test_what_is_not_finite_is_told_and_spoils_nothing() -> None:
    trend = LossTrend()
    for loss in [2.0] * WINDOW + [math.nan]:
        trend.add(loss)
    assert trend.last is not None and math.isnan(trend.last)
    assert trend.rise == 0.0
