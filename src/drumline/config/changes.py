"""What may differ between a run and its resumption: a pure comparison of two configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from drumline.config.problem import Problem, dotted, refuse, shown
from drumline.config.schema import RunConfig
from drumline.errors import ConfigError

FIXED = (
    "seed",
    "model",
    "data",
    "task",
    "train.global_batch",
    "train.batch_size_per_gpu",
    "train.gradient_accumulation_steps",
    "train.shuffle",
    "train.optimizer",
    "train.averaging",
)
"""What the saved state, which has the optimizer's settings too, or its place in the data means nothing without."""

FIXED_BY_TORCH = ("train.lr", "train.schedule")
"""What a scheduler of torch's keeps in its own state."""

FREE_IN_FIXED = ("data.cache_dir", "model.cache_dir", "model.token_variable")
"""What changes no row."""

TRAJECTORY = (
    "train.epochs",
    "train.max_steps",
    "train.lr",
    "train.schedule",
    "train.precision",
    "train.max_norm",
    "train.linear",
    "train.non_finite",
    "evaluate.early_stopping",
    "parallel.compression",
    "parallel.power_sgd_rank",
)
"""What may change, and gives other numbers than the run would have come to."""

NOT_COMPARED = ("name", "run_dir", "checkpoint.initial", "checkpoint.resume")
"""What says where the run is, and how it began."""

_ABSENT = "absent"


class Change(NamedTuple):
    """One setting that is not what it was."""

    name: str
    """Dotted, as --set takes it."""
    old: Any
    new: Any
    alters: bool
    """Whether the run comes to other numbers than it would have."""

    def __str__(self) -> str:
        return f"{self.name}: {_value(self.old)} -> {_value(self.new)}"


class Changes(NamedTuple):
    """All settings that differ, in the order of the schema."""

    allowed: tuple[Change, ...]
    refused: tuple[Change, ...]


def compare(old: RunConfig, new: RunConfig) -> Changes:
    """Every setting that differs between the config that a run was kept with and the one it is to go on with."""
    before, after = _leaves(old.model_dump(mode="json")), _leaves(new.model_dump(mode="json"))
    found = [
        Change(name, before.get(name, _ABSENT), after.get(name, _ABSENT), _is_under(name, TRAJECTORY))
        for name in dict.fromkeys([*before, *after])
        if before.get(name, _ABSENT) != after.get(name, _ABSENT) and not _is_under(name, NOT_COMPARED)
    ]
    by_torch = "torch" in (old.train.schedule.name, new.train.schedule.name)
    fixed = FIXED + (FIXED_BY_TORCH if by_torch else ())
    refused = tuple(each for each in found if _is_under(each.name, fixed) and not _is_under(each.name, FREE_IN_FIXED))
    return Changes(tuple(each for each in found if each not in refused), refused)


def refusal(changes: Changes, place: str) -> ConfigError:
    """The error that shows what differs and may not; `place` is the run directory."""
    problems = [
        Problem(None, tuple(each.name.split(".")), f"{_value(each.old)} in {place}, now {_value(each.new)}", fix)
        for each in changes.refused
        for fix in ["set it back, or give this run another name (--set name=...)"]
    ]
    if len(problems) == 1:
        return refuse(problems)
    lines = "\n".join(f"  {dotted(each.key)}: {each.what}" for each in problems)
    return ConfigError(f"this is not the run that is kept in {place}:\n{lines}", problems[0].fix)


def with_global_batch(config: RunConfig, global_batch: int | None) -> RunConfig:
    """A config whose batch is stated for each GPU, with the global batch that it came to when the run began.

    On another number of GPUs it would come to another one. The config itself where it states a global batch, or where
    None is known.
    """
    train = config.train
    if global_batch is None or train.batch_size_per_gpu is None:
        return config
    fixed = {
        "global_batch": global_batch,
        "micro_batch": min(train.batch_size_per_gpu, global_batch),
        "batch_size_per_gpu": None,
        "gradient_accumulation_steps": None,
    }
    return config.model_copy(update={"train": train.model_copy(update=fixed)})


def wants_more(old: RunConfig, new: RunConfig, reason: str) -> bool:
    """Whether a run that ended for this reason is asked to go on: for more updates or epochs, or with more patience."""
    limits = ((old.train.max_steps, new.train.max_steps), (old.train.epochs, new.train.epochs))
    raised = any(before is not None and (now is None or now > before) for before, now in limits)
    patient = reason == "early_stop" and old.evaluate.early_stopping != new.evaluate.early_stopping
    return raised or patient


def _is_under(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            found |= _leaves(value, f"{name}.")
        else:
            found[name] = value
    return found


def _value(value: Any) -> str:
    return str(value) if isinstance(value, list) else shown(None if value == _ABSENT else value)
