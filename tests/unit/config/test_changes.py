"""What may differ between a run and its resumption."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.config.changes import FIXED, compare, refusal, wants_more, with_global_batch
from drumline.config.load import config_from_mapping
from drumline.config.schema import RunConfig

BASE: dict[str, Any] = {
    "name": "first",
    "model": {"kind": "decoder", "num_layers": 2},
    "data": {"kind": "text", "train": ["a.txt"]},
    "train": {"global_batch": 8, "max_steps": 10, "averaging": {"kind": "ema"}},
}


def config(**sections: Any) -> RunConfig:
    merged = {**BASE, **{name: value for name, value in sections.items() if not isinstance(value, dict)}}
    for name, values in sections.items():
        if isinstance(values, dict):
            merged[name] = {**BASE.get(name, {}), **values}
    return config_from_mapping(merged, "test")


def test_the_same_config_has_no_changes() -> None:
    assert compare(config(), config()) == ((), ())
    moved = config(name="second", run_dir="elsewhere", checkpoint={"initial": "weights.pt", "resume": False})
    assert compare(config(), moved) == ((), ())


@pytest.mark.parametrize(
    ("sections", "name"),
    [
        ({"seed": 5}, "seed"),
        ({"model": {"num_layers": 3}}, "model.num_layers"),
        ({"data": {"train": ["b.txt"]}}, "data.train"),
        ({"data": {"context": 99}}, "data.context"),
        ({"task": {"kind": "regression"}}, "task.kind"),
        ({"train": {"global_batch": 16}}, "train.global_batch"),
        ({"train": {"shuffle": False}}, "train.shuffle"),
        ({"train": {"optimizer": {"name": "sgd"}}}, "train.optimizer.name"),
        ({"train": {"optimizer": {"state_precision": "bf16"}}}, "train.optimizer.state_precision"),
        ({"train": {"optimizer": {"weight_decay": 0.5}}}, "train.optimizer.weight_decay"),
        ({"train": {"averaging": None}}, "train.averaging"),
        ({"train": {"averaging": {"decay": 0.5}}}, "train.averaging.decay"),
    ],
)
def test_what_state_and_position_depend_on_is_refused(sections: dict[str, Any], name: str) -> None:
    changes = compare(config(), config(**sections))
    assert name in [change.name for change in changes.refused]
    assert all(any(change.name.startswith(prefix) for prefix in FIXED) for change in changes.refused)
    assert name in str(refusal(changes, "runs/first"))


@pytest.mark.parametrize(
    ("sections", "name", "alters"),
    [
        ({"train": {"lr": 0.5}}, "train.lr", True),
        ({"train": {"max_steps": 20}}, "train.max_steps", True),
        ({"train": {"epochs": 2}}, "train.epochs", True),
        ({"train": {"schedule": {"name": "linear"}}}, "train.schedule.name", True),
        ({"train": {"precision": "bf16"}}, "train.precision", True),
        ({"train": {"micro_batch": 2}}, "train.micro_batch", False),
        ({"train": {"compile": "whole"}}, "train.compile", False),
        ({"data": {"cache_dir": "elsewhere"}}, "data.cache_dir", False),
        ({"checkpoint": {"every": 5}}, "checkpoint.every", False),
        ({"parallel": {"kind": "ddp"}}, "parallel.kind", False),
        ({"hardware": {"num_processes": 3, "device": "cpu"}}, "hardware.num_processes", False),
        ({"loader": {"num_workers": 3}}, "loader.num_workers", False),
        ({"faults": {"max_restarts": 3}}, "faults.max_restarts", False),
    ],
)
def test_everything_else_is_allowed_and_told(sections: dict[str, Any], name: str, alters: bool) -> None:
    changes = compare(config(), config(**sections))
    assert not changes.refused
    assert (name, alters) in [(change.name, change.alters) for change in changes.allowed]


def test_a_scheduler_of_torchs_keeps_its_rate_and_its_options() -> None:
    schedule = {"name": "torch", "scheduler": "StepLR", "options": {"step_size": 3}}
    before = config(train={"schedule": schedule})
    changes: list[dict[str, Any]] = [
        {"lr": 0.5},
        {"schedule": {**schedule, "options": {"step_size": 4}}},
        {"schedule": {}},
    ]
    for change in changes:
        assert compare(before, config(train={"schedule": schedule, **change})).refused
    assert compare(config(), before).refused
    assert not compare(before, config(train={"schedule": schedule, "epochs": 2})).refused


def test_differences_are_shown_with_both_values() -> None:
    [change] = compare(config(), config(train={"lr": 0.5})).allowed
    assert str(change) == "train.lr: 0.0003 -> 0.5"
    error = refusal(compare(config(), config(seed=5)), "runs/first")
    assert (error.problem, error.exit_status) == ("seed: 0 in runs/first, now 5", 2)
    assert "give this run another name" in error.fix
    error = refusal(compare(config(), config(seed=5, data={"train": ["b.txt"]})), "runs/first")
    assert error.problem.splitlines() == [
        "this is not the run that is kept in runs/first:",
        "  seed: 0 in runs/first, now 5",
        "  data.train: ['a.txt'] in runs/first, now ['b.txt']",
    ]
    [refused] = compare(config(), config(train={"averaging": None})).refused[-1:]
    assert str(refused).endswith("-> nothing")


def test_a_batch_stated_for_each_gpu_stays_what_it_was_in_all() -> None:
    each = config(train={"global_batch": None, "batch_size_per_gpu": 4, "gradient_accumulation_steps": 2})
    kept = with_global_batch(each, 16)
    assert (kept.train.global_batch, kept.train.micro_batch, kept.train.batch_size_per_gpu) == (16, 4, None)
    assert kept.train.gradient_accumulation_steps is None
    assert with_global_batch(each, 3).train.micro_batch == 3
    assert with_global_batch(each, None) is each
    assert with_global_batch(config(), 16) == config()


@pytest.mark.parametrize(
    ("before", "now", "reason", "more"),
    [
        ({"max_steps": 10}, {"max_steps": 10}, "done", False),
        ({"max_steps": 10}, {"max_steps": 11}, "done", True),
        ({"max_steps": 10}, {"max_steps": 9}, "done", False),
        ({"max_steps": 10}, {"max_steps": 10, "epochs": 3}, "done", False),
        ({"max_steps": 10, "epochs": 3}, {"max_steps": None, "epochs": 3}, "done", True),
        ({"epochs": 3, "max_steps": None}, {"epochs": 4, "max_steps": None}, "early_stop", True),
    ],
)
def test_a_finished_run_is_asked_for_more(before: dict[str, Any], now: dict[str, Any], reason: str, more: bool) -> None:
    assert wants_more(config(train=before), config(train=now), reason) is more


def test_a_run_that_stopped_early_is_asked_for_more_patience() -> None:
    before, now = (config(evaluate={"early_stopping": {"patience": patience}}) for patience in (3, 5))
    assert wants_more(before, now, "early_stop")
    assert not wants_more(before, before, "early_stop")
    assert not wants_more(before, now, "done")
