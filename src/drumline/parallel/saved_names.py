"""Which of a model's weights a checkpoint holds, where the others never change and come from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from torch import nn

V = TypeVar("V")


@dataclass(frozen=True)
class SavedNames:
    """What is saved of a model with an adapter."""

    names: frozenset[str]
    """By which the bare model has it."""
    base: Mapping[str, str] = field(default_factory=dict)
    """What tells the model that the adapter belongs to from any other; see `models.adapter_files.base_identity`."""


KEPT = "_drumline_kept"
"""Attribute of a model with what is kept of it: a copy of the model has it too, as data_parallel's replicas are."""


def note_kept(model: nn.Module, names: Iterable[str], base: Mapping[str, str]) -> None:
    """From here on only these names of the bare model are saved, and loaded."""
    setattr(model, KEPT, SavedNames(frozenset(names), dict(base)))


def kept_of(model: nn.Module) -> SavedNames | None:
    """What is saved of the model; None: all of it."""
    kept: SavedNames | None = getattr(model, KEPT, None)
    return kept


def kept_names(model: nn.Module) -> frozenset[str] | None:
    """The bare state-dict names that a checkpoint of this model holds; None: all."""
    kept = kept_of(model)
    return None if kept is None else kept.names


def only_kept(model: nn.Module, values: Mapping[str, V]) -> dict[str, V]:
    """Of values by the bare model's names those that are saved."""
    names = kept_names(model)
    return {name: value for name, value in values.items() if names is None or name in names}


def base_problem(
    model: nn.Module, saved_base: Mapping[str, str] | None, saved: Iterable[str]
) -> tuple[str, str] | None:
    """Why what was saved beside one base model, None: of a whole model, does not belong to this one, and what to do.

    saved: names of the weights that were saved. None where nothing speaks against it.
    """
    kept = kept_of(model)
    if kept is None:
        if saved_base is None:
            return None
        path = saved_base.get("path", "another model")
        return (
            f"it holds only an adapter to {path}, and this model has none",
            "drumline export makes a whole model of the two; or set model.adapter as that run has it",
        )
    if saved_base is None:
        if any(".lora_" in name for name in saved):
            return None
        return (
            "it holds a whole model, and of this one, which has an adapter, only that is loaded",
            "name its export as model.path, and begin without these weights",
        )
    if saved_base.get("checksum") == kept.base.get("checksum"):
        return None
    mine, other = (f"{base.get('path')} {base.get('revision') or ''}".strip() for base in (kept.base, saved_base))
    return (
        f"its adapter belongs to another base model ({other}) than model.path names ({mine}): shapes or weights differ",
        "give the very model that it was trained beside, in model.path and model.revision",
    )
