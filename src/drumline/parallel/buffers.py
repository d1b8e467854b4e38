"""Buffers that training moves (BatchNorm's statistics), put back where a window does not count."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

BUCKET_BYTES = 250 * 2**20
"""Most bytes of buffers in one broadcast, as in DistributedDataParallel."""


def share_buffers(model: nn.Module, names: Sequence[str], group: dist.ProcessGroup) -> None:
    """Give every rank of the group rank 0's; all of them call it."""
    if names:
        dist._broadcast_coalesced(group, [model.get_buffer(name) for name in names], BUCKET_BYTES, 0)


def share_values(model: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    """The model, with rank 0's parameters and buffers on every rank of the group; all of them call it."""
    tensors = [each.detach() for each in (*model.parameters(), *model.buffers())]
    dist._broadcast_coalesced(group, tensors, BUCKET_BYTES, 0)
    return model


class Buffers:
    """The buffers that a checkpoint holds, and what they were before the window that is running.

    Without it a skipped update would leave NaN in running statistics for good, and a window that was given up at a stop
    would move them twice, once more after the resume.
    """

    def __init__(self, model: nn.Module) -> None:
        persistent = set(model.state_dict(keep_vars=True))
        self._model = model
        self.names = [name for name, _ in model.named_buffers() if name in persistent]
        self._kept = [torch.empty_like(buffer) for buffer in self._current()]
        self.in_window = False
        """Whether what was kept is of a window that has not come to its end."""

    def _current(self) -> list[Tensor]:
        """By name each time: a forward pass may put a new tensor in a buffer's place."""
        return [self._model.get_buffer(name) for name in self.names]

    @torch.no_grad()
    def keep(self) -> None:
        """Copy them, before a window."""
        self.in_window = True
        if self.names:
            torch._foreach_copy_(self._kept, self._current())

    @torch.no_grad()
    def take_back(self) -> None:
        """Undo what the window did to them."""
        self.in_window = False
        if self.names:
            torch._foreach_copy_(self._current(), self._kept)

    @torch.no_grad()
    def take_back_unless(self, applied: Tensor) -> None:
        """Undo it if `applied`, a scalar on the device, is 0.0; nobody waits for it."""
        for buffer, kept in zip(self._current(), self._kept, strict=True):
            buffer.copy_(torch.where(applied.to(buffer.device) > 0, buffer, kept))
