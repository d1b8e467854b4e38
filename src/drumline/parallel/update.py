"""From reduced gradients to an optimizer step, or to none, by the same rule on every rank and without a host sync."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from drumline.parallel.precision import LossScale
from drumline.parallel.strategy import Outcome, Rates

CLIP_EPSILON = 1e-6
"""Added to the norm before dividing, as torch.nn.utils.clip_grad_norm_ does."""


class Update:
    """Unscales, clips and steps. Learning rates count completed updates.

    A fused optimizer skips on the device (`found_inf`); where a skip does not end the run, its learning rate is then
    looked up on the device too, by a counter of completed updates, since the host learns of a skip a window later.
    Every other optimizer makes the host wait for the norm: it must not step on NaN.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, rates: Rates, loss_scale: LossScale | None) -> None:
        self.optimizer = optimizer
        self._rates = rates
        self._loss_scale = loss_scale
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._device = self._parameters[0].device
        self._bases = [float(group["lr"]) for group in optimizer.param_groups]
        self._fused = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        self._on_device = self._fused and rates.skippable and rates.factor is not None and rates.total is not None
        self._completed = 0
        if self._fused and isinstance(optimizer, torch.optim.SGD):
            self._fused = start_momentum(optimizer)
            self._on_device = self._on_device and self._fused
        if self._on_device:
            assert rates.factor is not None and rates.total is not None
            table = [rates.factor(step) for step in range(rates.total)]
            # torch's kernels for CUDA read a float32; elsewhere the rate is what the host would have given.
            dtype = torch.float32 if self._device.type == "cuda" else torch.float64
            self._table = torch.tensor(table, dtype=dtype, device=self._device)
            self._counter = torch.zeros((), dtype=torch.int64, device=self._device)
            for group, base in zip(optimizer.param_groups, self._bases, strict=True):
                group["lr"] = torch.tensor(base, dtype=dtype, device=self._device)

    def apply(self, max_norm: float | None) -> Outcome:
        """Run one update; gradients hold the window's sum (times the loss scale) and are cleared."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        # Unscaling and clipping are one factor, so the gradients are passed over once.
        factor = None
        if self._loss_scale is not None:
            factor = 1 / self._loss_scale.scale
            norm = norm * factor
        if max_norm is not None:
            clip = (max_norm / (norm + CLIP_EPSILON)).clamp(max=1.0)
            factor = clip if factor is None else clip * factor
        if factor is not None and gradients:
            torch._foreach_mul_(gradients, factor)
        applied = torch.isfinite(norm).float()
        rate = self._set_rate()
        stepped = None  # not known to the host
        if self._fused:
            self.optimizer.found_inf = 1 - applied  # type: ignore[attr-defined]
            self.optimizer.step()
            del self.optimizer.found_inf  # type: ignore[attr-defined]
        elif stepped := bool(applied):
            self.optimizer.step()
        self._count(applied, stepped)
        self.clear()
        return Outcome(norm, applied, rate)

    def _set_rate(self) -> Tensor | float:
        """Set every group's rate for the update that is due; returns the first group's."""
        groups = self.optimizer.param_groups
        if self._on_device:
            factor = self._table[self._counter.clamp(max=len(self._table) - 1)]
            for group, base in zip(groups, self._bases, strict=True):
                group["lr"].copy_(factor * base)
            first: Tensor = groups[0]["lr"]
            return first.clone()
        if self._rates.factor is not None:
            factor_now = self._rates.factor(self._completed)
            for group, base in zip(groups, self._bases, strict=True):
                group["lr"] = base * factor_now
        return float(groups[0]["lr"])

    def _count(self, applied: Tensor, stepped: bool | None) -> None:
        """Move counters, schedule and loss scale, only for an update that was applied."""
        if self._loss_scale is not None:
            self._loss_scale.update(applied)
        if self._on_device:
            self._counter += applied.long()
            return
        if stepped is None:
            # A skip ends the run, so the host need not look; or it does not, and then the host has to.
            stepped = not self._rates.skippable or bool(applied)
        if stepped:
            self._completed += 1
            if self._rates.scheduler is not None:
                self._rates.scheduler.step()

    def clear(self) -> None:
        """Drop the gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Any]:
        """Optimizer, counter, scheduler and loss scale."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "completed": int(self._counter) if self._on_device else self._completed,
            "scheduler": self._rates.scheduler.state_dict() if self._rates.scheduler is not None else None,
            "loss_scale": self._loss_scale.state() if self._loss_scale is not None else None,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state["optimizer"])
        if self._rates.factor is not None:
            # The rate is a function of the counter; what was loaded may be a number where a device tensor is due.
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
        self._completed = state["completed"]
        if self._on_device:
            self._counter.fill_(state["completed"])
        if self._rates.scheduler is not None and state["scheduler"] is not None:
            self._rates.scheduler.load_state_dict(state["scheduler"])
        if self._loss_scale is not None and state["loss_scale"] is not None:
            self._loss_scale.load(state["loss_scale"])


def start_momentum(optimizer: torch.optim.SGD) -> bool:
    """Zero the momentum of a fused SGD before its first update; returns whether it may skip on the device.

    torch 2.11 to 2.13 leave it uninitialised where the first update is skipped, and refuse a parameter whose first
    gradient comes later. Zero gives the first update that None gives, but for a dampening, which None leaves out.
    """
    for group in optimizer.param_groups:
        if not group["momentum"]:
            continue
        if group["dampening"]:
            return False
        for p in group["params"]:
            if optimizer.state[p].get("momentum_buffer") is None:
                optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
    return True
