"""State that lies in parts on the ranks: what a part is, and walks through nested state."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor


class Part(NamedTuple):
    """Some rows of a tensor."""

    tensor: Tensor
    """The rows that this rank holds; none where the ranks outnumber them."""
    shape: torch.Size
    """Of the whole tensor."""
    begin: int
    """The first of these rows."""

    def dim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)


Path = tuple[str, ...]
"""The keys that lead to a value in nested state."""


@runtime_checkable
class InParts(Protocol):
    """A strategy each of whose ranks holds a part of the state only."""

    def state(self, *, keep: bool | None = None) -> dict[str, Any]:
        """As `Strategy.state`, complete on the ranks that keep it (None: on rank 0); all ranks call it."""
        ...

    def parts(self) -> dict[str, Any]:
        """As `Strategy.state`, with a Part of this rank in the place of every tensor that is sharded."""
        ...

    def room(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Where this rank's share of a state goes: a Part for each tensor that is sharded here, on the CPU.

        state: as `Strategy.state`, of tensors on the meta device. `load` takes what is given here.
        """
        ...


def mapped(tree: Any, change: Callable[[Path, Any], Any], path: Path = ()) -> Any:
    """The same nested dicts, lists and tuples, with change(path, leaf) for every tensor, Part and other value.

    What only looks like one of them (a Counter, a NamedTuple) is a leaf.
    """
    if type(tree) in (dict, OrderedDict):
        return type(tree)((key, mapped(value, change, (*path, str(key)))) for key, value in tree.items())
    if type(tree) in (list, tuple):
        return type(tree)(mapped(value, change, (*path, str(index))) for index, value in enumerate(tree))
    return change(path, tree)


def tensors_in(tree: Any) -> list[tuple[Tensor, bool]]:
    """All tensors, each with whether it is that of a Part; what is one under two names is there once."""
    found: dict[Any, tuple[Tensor, bool]] = {}

    def note(path: Path, leaf: Any) -> None:
        tensor = leaf.tensor if isinstance(leaf, Part) else leaf
        if isinstance(tensor, Tensor):
            found[identity(tensor)] = tensor, isinstance(leaf, Part)

    mapped(tree, note)
    return list(found.values())


def identity(tensor: Tensor) -> tuple[Any, ...]:
    """Equal for two tensors that are the same values in the same memory."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device
