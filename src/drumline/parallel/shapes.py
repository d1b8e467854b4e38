"""Whether compiled code may meet a batch that it was not made for."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import Tensor
from torch.utils import _pytree

from drumline.parallel.compile import MOST_SIZES


class Shapes:
    """The batches that one replica's compiled code has met, by the shapes and types of their tensors.

    After MOST_SIZES sizes of one dimension code is made for any (torch's automatic dynamic shapes), but for 0 and 1.
    """

    def __init__(self) -> None:
        self._met: set[Hashable] = set()
        self._sizes: dict[Hashable, set[int]] = {}

    def are_new(self, batch: Any, *state: Hashable) -> bool:
        """Whether a batch like this one comes for the first time; state: what else code is compiled for."""
        key = self._key(batch, state)
        new = key not in self._met
        self._met.add(key)
        return new

    def _key(self, batch: Any, state: tuple[Hashable, ...]) -> Hashable:
        found: list[Hashable] = list(state)
        for number, leaf in enumerate(_pytree.tree_leaves(batch)):
            if isinstance(leaf, Tensor):
                sizes = [self._size((state, number, dim), size) for dim, size in enumerate(leaf.shape)]
                found.append((leaf.dtype, *sizes))
            elif isinstance(leaf, int | float | str):
                found.append(leaf)
        return tuple(found)

    def _size(self, place: Hashable, size: int) -> int | None:
        """The size, or None for any. place: of a dimension in the batches of a state."""
        known = self._sizes.setdefault(place, set())
        if size > 1:
            known.add(size)
        return None if size > 1 and len(known) > MOST_SIZES else size
