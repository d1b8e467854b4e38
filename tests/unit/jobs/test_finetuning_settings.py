"""Settings as people hand them to a service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drumline.config.load import config_from_mapping
from drumline.errors import ConfigError
from drumline.jobs.finetuning_settings import SHORT_NAMES, as_overrides, as_settings


def test_usual_names_are_the_schemas() -> None:
    settings = {"epochs": 3, "learning_rate": 5e-5, "batch_size_per_gpu": 8}
    assert as_overrides(settings) == ["train.epochs=3", "train.lr=5e-05", "train.batch_size_per_gpu=8"]


@pytest.mark.parametrize(
    ("settings", "section", "name", "value"),
    [
        ({"learning_rate": 5e-5}, "train", "lr", 5e-5),
        ({"max_grad_norm": None}, "train", "max_norm", None),
        ({"mixed_precision": True}, "train", "precision", "auto"),
        ({"mixed_precision": False}, "train", "precision", "fp32"),
        ({"gpu_ids": [0, 1]}, "hardware", "gpus", ["0", "1"]),
        ({"gpu_ids": []}, "hardware", "gpus", None),
        ({"memory_fraction": 0.9}, "hardware", "memory_fraction", 0.9),
        ({"backend": "gloo"}, "parallel", "backend", "gloo"),
        ({"backend": "nccl"}, "parallel", "backend", "auto"),
        ({"use_multi_gpu": False}, "parallel", "kind", "single"),
        ({"use_multi_gpu": True, "distributed_training": True, "sync_batch_norm": True}, "parallel", "kind", "auto"),
        ({"train.compile": "none"}, "train", "compile", "none"),
        ({"checkpoint": {"every": 7}}, "checkpoint", "every", 7),
        ({"model": {"adapter": {"kind": "dora", "rank": 4}}}, "model", "adapter", {"kind": "dora", "rank": 4}),
        ({"checkpoint.initial": Path("a b/c")}, "checkpoint", "initial", "a b/c"),
    ],
)
def test_each_comes_to_the_setting_that_is_meant(settings: dict[str, Any], section: str, name: str, value: Any) -> None:
    base = {"model": {"kind": "huggingface", "path": "m"}}
    found = config_from_mapping(base, "here", as_overrides(settings)).model_dump(mode="json")[section][name]
    assert {**found, **value} == found if isinstance(value, dict) else found == value


def test_the_same_as_values_of_which_the_last_counts() -> None:
    assert as_settings({"lr": 1.0, "learning_rate": 2.0, "train": {"epochs": 3}, "gpu_ids": []}) == {
        "train.lr": 2.0,
        "train.epochs": 3,
    }


def test_every_short_name_stands_for_a_setting() -> None:
    values = {"backend": "nccl", "gpu_ids": [0], "memory_fraction": 0.5, "max_length": 64}
    base = {"data": {"kind": "records", "train": ["a.jsonl"]}}
    for name in SHORT_NAMES:
        config_from_mapping(base, "here", as_overrides({name: values.get(name, 2)}))


def test_a_name_that_nobody_knows_is_refused_with_one_that_is_near() -> None:
    with pytest.raises(ConfigError, match="did you mean learning_rate"):
        as_overrides({"learnin_rate": 1})
