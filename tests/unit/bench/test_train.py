"""What the ranks saw of a benchmark, put together; and the config that it runs with."""

from __future__ import annotations

from typing import Any

import pytest

from drumline import RunConfig
from drumline.bench.phases import Phases
from drumline.bench.train import Lengths, Timed, prepared, result_of

PHASES = [Phases(0.01, 0.02, 0.005)]


def facts(kind: str = "ddp", gpus: tuple[str, ...] = ("a", "b")) -> dict[str, Any]:
    """Of a run with a known model on known cards."""
    plan = {"kind": kind, "gpus": gpus, "world_size": 1 if kind == "data_parallel" else 2}
    return {"plan": plan, "unit": "tokens", "flops_per_unit": 1e6, "peak_flops": 1e9}


def seen(step_s: list[float], units: int = 100) -> Timed:
    """One rank's numbers."""
    count = len(step_s)
    return Timed(step_s, [4] * count, [units] * count, PHASES, [{"peak_allocated_bytes": 7}], {"load": 1.0})


@pytest.mark.parametrize("kind", ["ddp", "data_parallel"])
def test_a_step_is_as_long_as_on_the_slowest_rank(kind: str) -> None:
    found = result_of(facts(kind), [seen([0.1] * 20), seen([0.2] * 20)], {})
    assert found["step_s"]["median"] == 0.2
    assert (found["units_per_s"], found["samples_per_s"]) == (500.0, 20.0)
    assert found["mfu"] == pytest.approx(500 * 1e6 / (2 * 1e9))
    assert found["memory"] == [{"peak_allocated_bytes": 7}] * 2
    assert found["phases"]["rest_s"] == pytest.approx(0.2 - 0.035)
    assert (found["verdict"], found["breakdown"]) == (None, [])


def test_late_warm_up_is_dropped_and_outliers_are_not() -> None:
    found = result_of(facts(), [seen([3.0, 2.0, *[0.1] * 10, 0.101, *[0.099] * 4, 5.0, *[0.1] * 5])], {})
    assert found["step_s"]["warm_up_dropped"] == 2
    assert found["step_s"]["count"] == 21 and 5.0 in found["step_s"]["samples"]
    assert found["step_s"]["median"] == 0.1


def test_an_unknown_card_or_model_has_no_mfu() -> None:
    assert result_of({**facts(), "peak_flops": None}, [seen([0.1] * 6)], {})["mfu"] is None


def test_the_profile_is_part_of_it() -> None:
    profile = {"verdict": "host", "message": "bound by host", "breakdown": [{}], "kernels": [], "operators": [1]}
    found = result_of(facts(), [seen([0.1] * 6)], profile)
    assert (found["verdict"], found["breakdown"], found["kernels"]) == ("host", [{}], [1])


def test_the_config_keeps_what_is_measured_and_drops_what_is_beside_it() -> None:
    config = RunConfig.model_validate(
        {
            "train": {"global_batch": 8, "epochs": 3, "lr": 0.5, "schedule": {"name": "cosine", "warmup_steps": 500}},
            "evaluate": {"every": 2, "early_stopping": {}},
            "checkpoint": {"every": 3},
            "track": {"tensorboard": True, "every": 7},
        }
    )
    found = prepared(config, Lengths(warm_up=10, timed=20))
    train = found.train
    assert (train.max_steps, train.epochs, train.lr, train.global_batch) == (40, None, 0.5, 8)
    assert train.schedule.warmup_steps == 0
    assert train.profile is not None and (train.profile.start, train.profile.steps) == (35, 5)
    assert (found.checkpoint.every, found.checkpoint.at_end, found.evaluate.early_stopping) == (None, False, None)
    assert (found.track.tensorboard, found.track.console, found.track.every) == (False, False, 7)
    assert prepared(config, Lengths(1, 2, profiled=0)).train.profile is None
