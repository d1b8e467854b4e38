"""Energy, GPU time and cost of a run over machines and attempts."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumline.config.monitor import MonitorConfig
from drumline.monitor.spending import Spending, read_spending, spending_file, total_spending, write_spending
from drumline.rundir import RunDir


def test_prices_of_energy_and_time_add_up() -> None:
    prices = MonitorConfig(price_per_kwh=0.3, price_per_gpu_hour=2.5)
    spent = Spending().plus(7.2e6, 3600.0, prices).plus(3.6e6, 1800.0, prices)
    assert (spent.energy_j, spent.gpu_s) == (10.8e6, 5400.0)
    assert spent.cost == pytest.approx(3 * 0.3 + 1.5 * 2.5)


def test_what_is_not_priced_costs_nothing() -> None:
    assert Spending().plus(1e9, 1e6, MonitorConfig()).cost == 0.0


def test_it_is_kept_a_file_a_machine_and_summed(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    assert total_spending(run) == Spending()
    first, second = Spending(10.0, 2.0, 0.5), Spending(1.0, 2.0, 0.25)
    write_spending(spending_file(run, "a"), first)
    write_spending(spending_file(run, "b"), second)
    assert read_spending(spending_file(run, "a")) == first
    assert total_spending(run) == Spending(11.0, 4.0, 0.75)


def test_a_file_that_is_none_of_ours_holds_nothing(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    for text in ("", "[]", '{"other": 1}', '{"energy_j": "many"}'):
        spending_file(run, "a").write_text(text)
        assert total_spending(run) == Spending()
