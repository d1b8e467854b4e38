"""The document of defaults, and what it comes to for a training."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drumline.config.load import config_from_mapping
from drumline.errors import ConfigError
from drumline.jobs.defaults import (
    GPUConfig,
    changed,
    devices_from,
    limited,
    notes_on,
    parallel_from,
    settings_from,
    uuid_of,
)
from drumline.jobs.records import Device, Inventory

GPUS = {0: "GPU-aaaa1111", 1: "GPU-bbbb2222"}


def test_its_defaults_are_the_ones_that_its_users_know() -> None:
    assert GPUConfig().model_dump() == {
        "use_multi_gpu": True,
        "gpu_ids": [],
        "distributed_training": False,
        "backend": "nccl",
        "batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 1,
        "sync_batch_norm": True,
        "mixed_precision": True,
        "memory_fraction": 0.9,
    }


def test_a_partial_change_keeps_the_rest() -> None:
    first = changed(GPUConfig(), {"batch_size_per_gpu": 4, "gpu_ids": [0, "GPU-bbbb2222"]})
    second = changed(first, {"mixed_precision": False})
    assert (second.batch_size_per_gpu, second.gpu_ids, second.mixed_precision) == (4, [0, "GPU-bbbb2222"], False)


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size_per_gpu": 0},
        {"batch_size_per_gpu": 10**400},
        {"memory_fraction": 0.0},
        {"memory_fraction": 1.5},
        {"memory_fraction": float("nan")},
        {"backend": "mpi"},
        {"gpu_ids": [-1]},
        {"gpu_ids": None},
        {"no_such_thing": 1},
    ],
)
def test_what_cannot_be_meant_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        changed(GPUConfig(), change)


def test_a_training_on_gpus_takes_batch_and_memory() -> None:
    found = settings_from(GPUConfig(), (), has_gpus=True)
    assert found == {
        "train.batch_size_per_gpu": 8,
        "train.gradient_accumulation_steps": 1,
        "hardware.memory_fraction": 0.9,
    }


@pytest.mark.parametrize(
    ("config", "said", "elastic", "found"),
    [
        ({}, {"train.global_batch"}, False, {}),
        ({}, {"train.micro_batch"}, False, {}),
        ({}, set(), True, {}),
        ({}, {"train.batch_size_per_gpu"}, False, {"train.gradient_accumulation_steps": 1}),
        ({}, {"train.gradient_accumulation_steps"}, False, {"train.batch_size_per_gpu": 8}),
        ({"mixed_precision": False}, {"train.global_batch"}, False, {"train.precision": "fp32"}),
        ({"mixed_precision": False}, {"train.global_batch", "train.precision"}, False, {}),
        ({"backend": "gloo", "memory_fraction": 0.5}, {"train.global_batch"}, False, {}),
    ],
)
def test_what_a_training_says_itself_counts(
    config: dict[str, Any], said: set[str], elastic: bool, found: dict[str, Any]
) -> None:
    assert settings_from(GPUConfig(**config), said, has_gpus=False, elastic=elastic) == found


def test_gloo_is_asked_for_between_gpus_only() -> None:
    assert settings_from(GPUConfig(backend="gloo"), (), has_gpus=True)["parallel.backend"] == "gloo"
    assert "parallel.backend" not in settings_from(GPUConfig(), (), has_gpus=True)


def test_every_setting_is_one_of_the_schema() -> None:
    found = settings_from(GPUConfig(backend="gloo", mixed_precision=False), (), has_gpus=True)
    config_from_mapping({}, "here", [f"{name}={json.dumps(value)}" for name, value in found.items()])


def test_how_many_devices_and_how_they_are_spread() -> None:
    assert devices_from(GPUConfig()) == "auto"
    assert devices_from(GPUConfig(use_multi_gpu=False)) == 1
    assert parallel_from(GPUConfig()) == "auto"
    assert parallel_from(GPUConfig(distributed_training=True)) == "distributed"


def test_what_has_no_effect_here_is_said() -> None:
    config = GPUConfig(gpu_ids=[0, 1, 2, 3])
    assert notes_on(config, {"gpu_ids"}, GPUS) == ["gpu_ids: this machine has no GPU 2, 3; those that it has are taken"]
    without = notes_on(config, {"gpu_ids", "backend"}, {})
    assert len(without) == 2
    assert notes_on(config, set(), {}) == []


@pytest.mark.parametrize(
    ("name", "found"), [(1, 1), ("1", 1), ("gpu-aaaa", 0), ("GPU-bbbb2222", 1), ("GPU-", None), (7, None), ("", None)]
)
def test_a_gpu_by_index_or_uuid(name: int | str, found: int | None) -> None:
    assert uuid_of(name, GPUS) == (None if found is None else GPUS[found])


def test_jobs_are_given_the_named_gpus_only() -> None:
    devices = (Device("GPU-a"), Device("GPU-b"), Device("GPU-c", unusable="sick"))
    found = limited(Inventory("here", 1.0, devices, has_gpus=True), ["GPU-b"])
    assert [device.id for device in found.devices if device.unusable is None] == ["GPU-b"]
    assert found.devices[2].unusable == "sick"


@pytest.mark.parametrize("uuids", [[], ["GPU-gone"]])
def test_names_of_nothing_limit_nothing(uuids: list[str]) -> None:
    inventory = Inventory("here", 1.0, (Device("GPU-a"),), has_gpus=True)
    assert limited(inventory, uuids) == inventory
