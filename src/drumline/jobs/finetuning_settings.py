"""Settings as people hand them to a fine-tuning service, brought to the names that the schema has: pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from drumline.config.schema import RunConfig
from drumline.errors import ConfigError

SHORT_NAMES = {
    "epochs": "train.epochs",
    "max_steps": "train.max_steps",
    "learning_rate": "train.lr",
    "lr": "train.lr",
    "batch_size": "train.global_batch",
    "batch_size_per_gpu": "train.batch_size_per_gpu",
    "gradient_accumulation_steps": "train.gradient_accumulation_steps",
    "warmup_steps": "train.schedule.warmup_steps",
    "weight_decay": "train.optimizer.weight_decay",
    "max_grad_norm": "train.max_norm",
    "max_length": "data.context",
    "gpu_ids": "hardware.gpus",
    "memory_fraction": "hardware.memory_fraction",
    "backend": "parallel.backend",
}
"""What may be said besides the schema's own dotted names (train.lr) and sections ({"train": {"lr": ...}})."""

DECIDED_ELSEWHERE = frozenset({"distributed_training", "sync_batch_norm"})
"""Of others' settings, what changes no number here: how processes are spread is asked for beside the settings, and the
models that are fine-tuned have no BatchNorm (parallel.kind ddp has a sync_batch_norm for those that have)."""
OTHER_NAMES = ("mixed_precision", "use_multi_gpu", *sorted(DECIDED_ELSEWHERE))


def as_overrides(settings: Mapping[str, Any]) -> list[str]:
    """Settings as --set takes them, in their order. Raises ConfigError for a name that nobody knows."""
    return [f"{name}={_text(value)}" for key, given in settings.items() for name, value in _named(str(key), given)]


def as_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same as values by the schema's dotted names; of a name that comes twice the last value counts."""
    return {name: value for key, given in settings.items() for name, value in _named(str(key), given)}


def _named(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if key == "mixed_precision" and isinstance(value, bool):
        yield "train.precision", "auto" if value else "fp32"
    elif key == "use_multi_gpu" and isinstance(value, bool):
        if not value:
            yield "parallel.kind", "single"
    elif key in DECIDED_ELSEWHERE and isinstance(value, bool):
        return
    elif key == "backend" and value == "nccl":
        return  # what auto comes to between GPUs; without any nobody could mean it
    elif key == "gpu_ids" and not value:
        return  # an empty list is how somebody says: all of them
    elif key in SHORT_NAMES:
        yield SHORT_NAMES[key], [str(each) for each in value] if key == "gpu_ids" else value
    elif "." in key or key in RunConfig.model_fields:
        yield from _flat(key, value)
    else:
        near = get_close_matches(key, [*SHORT_NAMES, *OTHER_NAMES], 1)
        raise ConfigError(
            f"training_config has no setting {key!r}",
            (f"did you mean {near[0]}? " if near else "")
            + f"It takes {', '.join([*SHORT_NAMES, *OTHER_NAMES])}, and any name of the schema, as train.schedule.name",
        )


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A section's settings one by one, so that those it does not name stay as they are chosen; a kind with its own."""
    if isinstance(value, Mapping) and value and "kind" not in value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    else:
        yield name, value


def _text(value: Any) -> str:
    """As YAML reads it."""
    return json.dumps(value, default=lambda other: str(other) if isinstance(other, Path) else other)
