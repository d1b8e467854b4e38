"""A copy of the state in the host's memory, from which a thread writes while training goes on."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from drumline.parallel.parts import Part, Path, identity, mapped

CHUNK = 2**28
"""Bytes of page-locked memory that are asked for at a time: torch's allocator rounds up to a power of two."""
ALIGNMENT = 64
"""Bytes between whose multiples tensors begin."""


class HostCopies:
    """Copies states. On a GPU into page-locked buffers, which the next copy uses again: only one is alive at a time."""

    def __init__(self) -> None:
        self._chunks: list[Tensor] = []

    def copy(self, state: Any) -> Any:
        """The same nested state with its tensors on the host; returns when all is copied.

        What is one tensor under two names (tied weights) is one in the copy.
        """
        copies: dict[tuple[Any, ...], Tensor] = {}
        places = Places(self._chunks)
        devices: set[torch.device] = set()

        def copied(tensor: Tensor) -> Tensor:
            key = identity(tensor) if tensor.numel() else (id(tensor),)
            if key not in copies:
                if tensor.device.type == "cpu":
                    copies[key] = tensor.detach().clone()
                else:
                    devices.add(tensor.device)
                    copies[key] = places.take(tensor)
                    copies[key].copy_(tensor.detach(), non_blocking=True)
            return copies[key]

        def change(path: Path, leaf: Any) -> Any:
            if isinstance(leaf, Part):
                return leaf._replace(tensor=copied(leaf.tensor))
            return copied(leaf) if isinstance(leaf, Tensor) else leaf

        found = mapped(state, change)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        return found


class Places:
    """Hands out pieces of the chunks in order, and adds to them where they do not suffice."""

    def __init__(self, chunks: list[Tensor], *, pinned: bool = True) -> None:
        self._chunks = chunks
        self._pinned = pinned
        self._index = 0
        self._used = 0

    def take(self, like: Tensor) -> Tensor:
        """Memory for a tensor of this type, shape and strides; a storage of its own: torch.save writes all of it."""
        dense = like.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(like)
        size = like.numel() * like.element_size()
        if size == 0:
            return torch.empty(like.shape, dtype=like.dtype)
        while self._index < len(self._chunks) and self._used + size > self._chunks[self._index].numel():
            self._index, self._used = self._index + 1, 0
        if self._index == len(self._chunks):
            self._chunks.append(torch.empty(max(size, CHUNK), dtype=torch.uint8, pin_memory=self._pinned))
        memory: Any = memoryview(self._chunks[self._index].numpy())  # type: ignore[arg-type]
        flat = torch.frombuffer(memory, dtype=like.dtype, count=like.numel(), offset=self._used)
        self._used += math.ceil(size / ALIGNMENT) * ALIGNMENT
        return flat.as_strided(like.shape, like.stride()) if dense else flat.view(like.shape)
