"""Buffers that training moves (BatchNorm's statistics), put back where a window does not count."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Buffers:
    """The buffers that a checkpoint holds, and what they were before the window that is running.

    Without it a skipped update would leave NaN in running statistics for good, and a window that was given up at a stop
    would move them twice, once more after the resume.
    """

    def __init__(self, model: nn.Module) -> None:
        persistent = set(model.state_dict(keep_vars=True))
        self._buffers = [buffer for name, buffer in model.named_buffers() if name in persistent]
        self._kept = [torch.empty_like(buffer) for buffer in self._buffers]

    @torch.no_grad()
    def keep(self) -> None:
        """Copy them, before a window."""
        if self._buffers:
            torch._foreach_copy_(self._kept, self._buffers)

    @torch.no_grad()
    def take_back(self) -> None:
        """Undo what the window did to them."""
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._kept)

    @torch.no_grad()
    def take_back_unless(self, applied: Tensor) -> None:
        """Undo it if `applied`, a scalar on the device, is 0.0; nobody waits for it."""
        for buffer, kept in zip(self._buffers, self._kept, strict=True):
            buffer.copy_(torch.where(applied > 0, buffer, kept))
