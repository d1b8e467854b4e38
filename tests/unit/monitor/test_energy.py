from __future__ import annotations

from typing import Any

import pytest

from drumline.config.monitor import MonitorConfig
from drumline.monitor.energy import Energy, EnergyMeter, cost, spent
from tests.unit.monitor.snapshots import sample, snapshot


def test_the_counter_is_what_counts() -> None:
    found = spent(Energy(), sample(time=0.0, energy_j=1e6, power_w=100), sample(time=3600.0, energy_j=1.5e6, power_w=9))
    assert found == Energy(joules=5e5, seconds=3600.0)


def test_power_is_added_up_where_there_is_no_counter() -> None:
    meter = EnergyMeter()
    for second, power in enumerate((100.0, 300.0, 300.0, 100.0)):
        meter.add(snapshot(sample(time=2.0 * second, power_w=power)))
    assert meter.of("GPU-0") == Energy(joules=400 + 600 + 400, seconds=6.0, integrated_s=6.0)
    assert meter.joules() == meter.joules(["GPU-0"]) == 1400.0


def test_a_gap_is_not_filled_with_guesses() -> None:
    gap = spent(Energy(), sample(time=0.0, power_w=700.0), sample(time=3600.0, power_w=700.0))
    assert gap == Energy(unknown_s=3600.0)
    assert spent(gap, sample(time=3600.0, power_w=700.0), sample(time=3601.0)) == Energy(unknown_s=3601.0)


def test_a_reset_is_told_and_takes_nothing_away() -> None:
    before, after = sample(time=0.0, energy_j=9e6, power_w=100.0), sample(time=10.0, energy_j=50.0, power_w=200.0)
    assert spent(Energy(), before, after) == Energy(joules=1500.0, seconds=10.0, integrated_s=10.0, resets=1)
    powerless = spent(Energy(), sample(time=0.0, energy_j=9e6), sample(time=10.0, energy_j=50.0))
    assert powerless == Energy(joules=50.0, unknown_s=10.0, resets=1)


def test_a_counter_that_comes_and_goes() -> None:
    meter = EnergyMeter()
    looks: list[dict[str, Any]] = [{"energy_j": 10.0}, {"energy_j": 30.0}, {"power_w": 5.0}, {"energy_j": 90.0}]
    for second, values in enumerate(looks):
        meter.add(snapshot(sample(time=float(second), **values)))
    assert meter.of("GPU-0") == Energy(joules=20.0, seconds=1.0, unknown_s=2.0)


def test_gpus_are_apart_and_one_that_was_away_goes_on() -> None:
    meter = EnergyMeter()
    meter.add(snapshot(sample(0, 0.0, energy_j=0.0), sample(1, 0.0, energy_j=500.0)))
    meter.add(snapshot(sample(0, 1.0, energy_j=10.0)))
    meter.add(snapshot(sample(0, 2.0, energy_j=20.0), sample(1, 2.0, energy_j=700.0)))
    assert meter.joules() == 220.0
    assert meter.joules(["GPU-1", "GPU-7"]) == 200.0


def test_what_nobody_told_is_none_and_not_nought() -> None:
    meter = EnergyMeter()
    assert meter.joules() is None and meter.of("GPU-0") is None
    for second in range(3):
        meter.add(snapshot(sample(time=float(second))))
    assert meter.joules() is None
    assert meter.of("GPU-0") == Energy(unknown_s=2.0)


def test_a_clock_that_was_set_back_takes_nothing() -> None:
    energy = Energy(joules=5.0, seconds=1.0)
    assert spent(energy, sample(time=10.0, energy_j=1.0), sample(time=9.0, energy_j=2.0)) == energy


def test_cost() -> None:
    prices = MonitorConfig(price_per_kwh=0.3, price_per_gpu_hour=2.5)
    assert cost(7.2e6, 4.0, prices) == pytest.approx(2 * 0.3 + 4 * 2.5)
    assert cost(7.2e6, 4.0, MonitorConfig()) == 0.0
