"""Number formats of the forward and backward pass, and the loss scale that float16 needs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

GROWTH_INTERVAL = 2000
INITIAL_SCALE = 65536.0
"""Both as in torch.amp.GradScaler, so that runs moved over from it behave alike."""


class LossScale:
    """Dynamic loss scale (Micikevicius et al. 2018), kept on the device so that no rank waits for it.

    Halves after a non-finite gradient, doubles after GROWTH_INTERVAL finite ones in a row.
    """

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.full((), INITIAL_SCALE, device=device)
        self._finite_in_a_row = torch.zeros((), device=device)

    def update(self, applied: Tensor, whole: Tensor | None = None) -> None:
        """Take in one window's outcome: 1.0 applied, 0.0 skipped; whole: false where it does not count at all."""
        run = (self._finite_in_a_row + 1) * applied
        grow = run >= GROWTH_INTERVAL
        factor = torch.where(applied == 0, 0.5, torch.where(grow, 2.0, 1.0))
        run = torch.where(grow, 0.0, run)
        if whole is not None:
            factor, run = torch.where(whole, factor, 1.0), torch.where(whole, run, self._finite_in_a_row)
        self.scale.mul_(factor)
        self._finite_in_a_row.copy_(run)

    def state(self) -> dict[str, float]:
        """Scale and length of the finite run."""
        return {"scale": float(self.scale), "finite_in_a_row": float(self._finite_in_a_row)}

    def load(self, state: Mapping[str, float]) -> None:
        """Take back what `state` gave."""
        self.scale.fill_(state["scale"])
        self._finite_in_a_row.fill_(state["finite_in_a_row"])


class Precision:
    """How one run computes: autocast type and loss scale of `fp32`, `tf32`, `bf16` or `fp16`."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self._device_type = device.type
        self._dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name)
        self.loss_scale = LossScale(device) if name == "fp16" else None

    def autocast(self) -> AbstractContextManager[object]:
        """The context of forward passes; set in each thread that runs one."""
        return torch.autocast(self._device_type, self._dtype) if self._dtype else nullcontext()
