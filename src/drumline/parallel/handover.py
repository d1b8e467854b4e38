"""State of one rank given to others that have lost theirs, a tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Slot:
    """The place of a tensor in a state that travels without its tensors."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape, self.dtype = tensor.shape, tensor.dtype


def mapped(state: Any, kind: type[Any], change: Callable[[Any], Any]) -> Any:
    """The state with a change to everything of one kind in its mappings, lists and tuples."""
    if isinstance(state, kind):
        return change(state)
    if isinstance(state, Mapping):
        return {key: mapped(value, kind, change) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(mapped(value, kind, change) for value in state)
    return state


@torch.no_grad()
def hand_over(state: Any, giver: int, group: dist.ProcessGroup, device: torch.device, *, takes: bool) -> Any:
    """Send the state of rank `giver` of the group; returns it on the CPU where it `takes` it, else None.

    All ranks call it, only the giver's `state` counts. No device holds more than one tensor of it besides its own.
    """
    gives = dist.get_rank(group) == giver
    own: list[Tensor] = []

    def leave(tensor: Tensor) -> Slot:
        own.append(tensor.detach())
        return Slot(tensor)

    skeleton = [mapped(state, Tensor, leave) if gives else None]
    dist.broadcast_object_list(skeleton, group=group, group_src=giver, device=device)
    tensors = iter(own)

    def send(slot: Slot) -> Tensor | None:
        tensor = (
            next(tensors).to(device).contiguous() if gives else torch.empty(slot.shape, dtype=slot.dtype, device=device)
        )
        dist.broadcast(tensor, group=group, group_src=giver)
        return tensor.cpu() if takes else None

    found = mapped(skeleton[0], Slot, send)
    return found if takes else None
