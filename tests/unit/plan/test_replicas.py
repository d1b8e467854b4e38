"""Which GPUs make a replica, and how many it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drumline.config.inference import InferenceConfig, InferenceModel
from drumline.errors import ConfigError, DataError, HardwareError
from drumline.plan.memory import GIB
from drumline.plan.replicas import check_split, gpus_needed, left_over, replicas, weight_bytes

EIGHT = [f"GPU-{number}" for number in range(8)]


def test_eight_gpus_are_four_replicas_of_two() -> None:
    made = replicas(EIGHT, 2)
    assert made == [(EIGHT[i], EIGHT[i + 1]) for i in (0, 2, 4, 6)]
    assert left_over(EIGHT, made) == ()


def test_what_is_left_over_is_named() -> None:
    made = replicas(EIGHT, 3)
    assert made == [tuple(EIGHT[:3]), tuple(EIGHT[3:6])]
    assert left_over(EIGHT, made) == ("GPU-6", "GPU-7")


def test_near_gpus_go_together() -> None:
    even, odd = EIGHT[::2], EIGHT[1::2]
    assert replicas(EIGHT, 2, [even, odd]) == [
        ("GPU-0", "GPU-2"),
        ("GPU-1", "GPU-3"),
        ("GPU-4", "GPU-6"),
        ("GPU-5", "GPU-7"),
    ]


def test_what_groups_leave_makes_replicas_too() -> None:
    made = replicas(EIGHT[:6], 2, [EIGHT[:3], EIGHT[3:6]])
    assert made == [("GPU-0", "GPU-1"), ("GPU-2", "GPU-5"), ("GPU-3", "GPU-4")]


@pytest.mark.parametrize("gpus", [[], ["GPU-0"]])
def test_too_few_gpus(gpus: list[str]) -> None:
    with pytest.raises(HardwareError, match=f"takes 2 GPUs, and there are {len(gpus)}: "):
        replicas(gpus, 2)
    with pytest.raises(ConfigError, match="cannot have 0 GPUs"):
        replicas(gpus, 0)


@pytest.mark.parametrize(("gib", "count"), [(16, 1), (58, 1), (59, 2), (140, 4), (400, 8)])
def test_as_few_as_hold_the_weights_with_room_to_compute(gib: int, count: int) -> None:
    assert gpus_needed(gib * GIB, 80 * GIB) == count


def test_what_eight_do_not_hold() -> None:
    with pytest.raises(HardwareError, match=r"take 600\.0 GiB, which 8 GPUs of 80\.0 GiB do not hold"):
        gpus_needed(600 * GIB, 80 * GIB)


def save(file: Path, tensors: dict[str, Any]) -> None:
    head = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    file.write_bytes(len(head).to_bytes(8, "little") + head)


@pytest.mark.parametrize(
    ("settings", "half", "expected"),
    [
        ({}, True, 2 * 4096 + 2 * 100 + 8 * 10),
        ({}, False, 4 * 4096 + 4 * 100 + 8 * 10),
        ({"dtype": "float32"}, True, 4 * 4096 + 4 * 100 + 8 * 10),
        ({"quantise": "int8"}, True, 4096 * (1 + 1 / 16) + 2 * 100 + 8 * 10),
    ],
)
def test_bytes_of_weights_as_loaded(tmp_path: Path, settings: Any, half: bool, expected: float) -> None:
    save(tmp_path / "model-1-of-2.safetensors", {"layers.0.proj.weight": {"dtype": "BF16", "shape": [64, 64]}})
    save(
        tmp_path / "model-2-of-2.safetensors",
        {"embed.weight": {"dtype": "F32", "shape": [10, 10]}, "places": {"dtype": "I64", "shape": [10]}},
    )
    assert weight_bytes(tmp_path, InferenceModel(path=".", **settings), half=half) == expected


def test_files_that_tell_no_size(tmp_path: Path) -> None:
    model = InferenceModel(path=".")
    with pytest.raises(ConfigError, match="no safetensors"):
        weight_bytes(tmp_path, model, half=True)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(DataError, match=r"model\.safetensors is damaged"):
        weight_bytes(tmp_path, model, half=True)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"split": {"device_map": {"model": 0}}}, "split.device_map is set"),
        ({"model": {"path": "m", "quantise": "nf4"}}, "model.quantise is set"),
        ({"model": {"path": "m", "random_weights": True}}, "model.random_weights is set"),
        ({"task": {"kind": "generate", "engine": "static"}}, "task.engine is static"),
    ],
)
def test_what_does_not_go_with_a_tensor_split_is_refused(settings: dict[str, Any], problem: str) -> None:
    split = settings.get("split", {})
    given = {"model": {"path": "m"}, "rows": {"files": ["r"]}, "output": {"file": "o.jsonl"}, **settings}
    check_split(InferenceConfig.model_validate({**given, "split": {**split, "kind": "layers"}}))
    with pytest.raises(ConfigError, match=problem):
        check_split(InferenceConfig.model_validate({**given, "split": {**split, "kind": "tensor"}}))
