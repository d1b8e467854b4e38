"""The learning rate against values worked out by hand."""

from __future__ import annotations

import itertools
import math
from typing import Literal

import pytest

from drumline.config.train import ScheduleConfig
from drumline.errors import ConfigError
from drumline.plan.schedule import lr_factor

Name = Literal["constant", "linear", "cosine", "wsd"]
NAMES: list[Name] = ["constant", "linear", "cosine", "wsd"]


def factors(schedule: ScheduleConfig, total: int) -> list[float]:
    return [lr_factor(schedule, step, total) for step in range(total)]


def test_warm_up_is_a_straight_line_that_reaches_the_peak() -> None:
    schedule = ScheduleConfig(name="constant", warmup_steps=4)
    assert factors(schedule, 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert lr_factor(schedule, 10**9, None) == 1.0


def test_linear() -> None:
    schedule = ScheduleConfig(name="linear", final_fraction=0.0)
    assert factors(schedule, 5) == [1.0, 0.75, 0.5, 0.25, 0.0]
    schedule = ScheduleConfig(name="linear", warmup_steps=2, final_fraction=0.5)
    assert factors(schedule, 7) == [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5]


def test_cosine() -> None:
    schedule = ScheduleConfig(name="cosine", final_fraction=0.0)
    root = math.sqrt(0.5)
    assert factors(schedule, 5) == pytest.approx([1, (1 + root) / 2, 0.5, (1 - root) / 2, 0], abs=1e-15)
    schedule = ScheduleConfig(name="cosine", warmup_steps=1, final_fraction=0.2)
    assert factors(schedule, 4) == pytest.approx([1.0, 1.0, 0.6, 0.2], abs=1e-15)


def test_warm_up_stable_decay() -> None:
    schedule = ScheduleConfig(name="wsd", warmup_steps=2, final_fraction=0.0, decay_fraction=0.4)
    assert factors(schedule, 10) == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]


def test_a_decay_longer_than_what_warm_up_leaves_starts_after_warm_up() -> None:
    schedule = ScheduleConfig(name="wsd", warmup_steps=2, final_fraction=0.0, decay_fraction=1.0)
    assert factors(schedule, 4) == [0.5, 1.0, 0.5, 0.0]


@pytest.mark.parametrize("name", ["linear", "cosine", "wsd"])
@pytest.mark.parametrize("final", [0.0, 0.1, 1 / 3, 1.0])
def test_the_last_update_has_exactly_the_final_fraction_and_it_stays(name: Name, final: float) -> None:
    for warmup in range(4):
        schedule = ScheduleConfig(name=name, warmup_steps=warmup, final_fraction=final)
        for total in range(warmup + 2, 40):
            assert lr_factor(schedule, total - 1, total) == final
            assert lr_factor(schedule, total, total) == final
            assert lr_factor(schedule, total + 1000, total) == final


@pytest.mark.parametrize("name", NAMES)
def test_after_warm_up_the_rate_never_rises_and_never_leaves_its_bounds(name: Name) -> None:
    for warmup in (0, 1, 3, 9, 10):
        schedule = ScheduleConfig(name=name, warmup_steps=warmup, final_fraction=0.05, decay_fraction=0.37)
        for total in range(max(1, warmup), 30):
            values = factors(schedule, total)
            after = values[max(0, warmup - 1) :]
            assert all(later <= earlier for earlier, later in itertools.pairwise(after))
            assert all(0.05 <= value <= 1.0 for value in after)
            assert values[:warmup] == [(step + 1) / warmup for step in range(warmup)]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_one_update_past_warm_up_does_not_divide_by_zero(name: Name) -> None:
    for warmup in (0, 3):
        value = lr_factor(ScheduleConfig(name=name, warmup_steps=warmup, final_fraction=0.1), warmup, warmup + 1)
        assert value == (0.1 if name == "wsd" else 1.0)


@pytest.mark.parametrize("name", ["linear", "cosine", "wsd"])
def test_a_shape_needs_a_length(name: Name) -> None:
    with pytest.raises(ConfigError, match=rf"schedule\.name is {name}.*\n.*max_steps"):
        lr_factor(ScheduleConfig(name=name), 0, None)


def test_a_scheduler_of_torchs_is_refused() -> None:
    schedule = ScheduleConfig(name="torch", scheduler="StepLR")
    with pytest.raises(ConfigError, match="only StepLR itself knows its rates"):
        lr_factor(schedule, 0, 10)
