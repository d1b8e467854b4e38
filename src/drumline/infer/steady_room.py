"""How many tokens of a row a model takes without its other rows having a say in what becomes of it."""

from __future__ import annotations

from typing import Any

from torch import nn

from drumline.models.huggingface import is_pretrained, text_config
from drumline.models.writing import room_of

_CHANGING = {"longrope", "dynamic"}
"""Kinds of rotary embeddings whose frequencies are others as soon as the longest row of a batch passes a length."""


def steady_room(model: nn.Module) -> int | None:
    """Most tokens of a row, answer and all; None where the model does not say.

    Beyond the original length of some rotary embeddings a short row's numbers would depend on whether a long one is in
    its batch, and keys that are kept would not fit those that follow: such models take no longer rows.
    """
    room, original = room_of(model), _original_length(model)
    if room is None or original is None:
        return room if original is None else original
    return min(room, original)


def room_note(model: nn.Module) -> str:
    """What a row's problem says besides: empty, or why the room is smaller than the model's."""
    room, steady = room_of(model), steady_room(model)
    if room is None or steady is None or steady == room:
        return ""
    return f" (of its {room:,}: beyond {steady:,} its rotary embeddings change with the longest row of a batch)"


def _original_length(model: nn.Module) -> int | None:
    if not is_pretrained(model):
        return None
    config = text_config(model)
    stated: Any = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    # One for all layers, or one for each kind of them.
    kinds = [stated, *(each for each in stated.values() if isinstance(each, dict))] if isinstance(stated, dict) else []
    lengths = [
        each.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
        for each in kinds
        if each.get("rope_type", each.get("type")) in _CHANGING
    ]
    return min((int(length) for length in lengths if length), default=None)
