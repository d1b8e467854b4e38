"""What may differ between a prediction run and its resumption: a pure comparison of two configs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drumline.config.changes import Change
from drumline.config.inference import InferenceConfig
from drumline.config.problem import Problem, refuse
from drumline.errors import ConfigError

FREE = (
    "hang_timeout_s",
    "hardware",
    "max_deaths",
    "max_restarts",
    "run_dir",
    "rows.image_roots",
    "model.cache_dir",
    "model.token_variable",
    "model.trust_remote_code",
)
"""What changes no answer. All else is kept: the rows that are answered already were answered under it."""


def differences(old: InferenceConfig, new: InferenceConfig) -> tuple[Change, ...]:
    """Every setting that differs between the config that a run was kept with and another, in the schema's order.

    `alters` says of each whether answers would differ.
    """
    before, after = dict(_leaves(old.model_dump(mode="json"))), dict(_leaves(new.model_dump(mode="json")))
    return tuple(
        Change(name, before.get(name), after.get(name), not name.startswith(FREE))
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    )


def refuse_other(old: InferenceConfig, new: InferenceConfig, place: str) -> None:
    """Raise ConfigError that shows which settings are not those of the run that is kept in `place`, if any."""
    changes = [each for each in differences(old, new) if each.alters]
    if not changes:
        return
    fix = "set it back, or give this run another --out"
    if len(changes) == 1:
        [only] = changes
        raise refuse([Problem(None, (), f"this is not the run that is kept in {place}: {only}", fix)])
    lines = "\n".join(f"  {each}" for each in changes)
    raise ConfigError(f"this is not the run that is kept in {place}:\n{lines}", fix.replace("it", "them", 1))


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
