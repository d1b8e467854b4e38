"""From reduced gradients to an optimizer step, or to none, by the same rule on every rank and without a host sync."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from drumline.parallel.allocate import allocate_state
from drumline.parallel.each_gradient import drop_gradients, gradients_of
from drumline.parallel.precision import LossScale
from drumline.parallel.strategy import Outcome, Rates

MOST_AHEAD = 4
"""Steps of which the host does not know yet what became of them; it learns of each a window later."""

CLIP_EPSILON = 1e-6
"""Added to the norm before dividing, as torch.nn.utils.clip_grad_norm_ does."""


Norm = Callable[[list[Tensor]], Tensor]
"""From the gradients that a process holds to their global norm, a scalar on their device, equal on all ranks."""


class Update:
    """Unscales, clips and steps. Learning rates count completed updates.

    A fused optimizer skips on the device (`found_inf`) and divides by what unscaling and clipping come to
    (`grad_scale`), so that nothing waits and no pass over the gradients is made for it. Where a skip does not end the
    run, its learning rate is looked up on the device too, by a counter of completed updates, since the host learns of a
    skip a window later. Every other optimizer makes the host wait for the norm: it must not step on NaN.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        rates: Rates,
        loss_scale: LossScale | None,
        norm: Norm | None = None,
    ) -> None:
        """norm: where gradients are sharded; none: each process holds all of them."""
        self.optimizer = optimizer
        self._rates = rates
        self._loss_scale = loss_scale
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._has_dtensors = any(local_part(p) is not p for p in self._parameters)
        self._device = self._parameters[0].device
        kinds = {(p.device, p.dtype) for p in self._parameters}
        self._norm = norm or (total_norm if len(kinds) == 1 else mixed_norm)
        self._scheduler = None if rates.make_scheduler is None else rates.make_scheduler(optimizer)
        self._bases = [float(group["lr"]) for group in optimizer.param_groups]
        allocate_state(optimizer)
        self._fused = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        if self._fused and isinstance(optimizer, torch.optim.SGD):
            self._fused = start_momentum(optimizer)
        # Fused kernels read a float32, which is too coarse for gradients in float64.
        self._divides = self._fused and all(dtype != torch.float64 for _, dtype in kinds)
        by_update = self._scheduler is not None and rates.interval == "update"
        host_counts = by_update or (rates.factor is not None and rates.total is None)
        self._completed = 0
        self._before: deque[tuple[int, dict[str, Any] | None]] = deque(maxlen=MOST_AHEAD)
        """Count and schedule before the newest steps that may turn out to be none."""
        self.entered = False
        """Whether a step was begun that whoever called `apply` has not yet found whole."""
        self._counter: Tensor | None = None
        if self._fused and rates.skippable and not host_counts:
            self._counter = torch.zeros((), dtype=torch.int64, device=self._device)
        self._on_device = self._counter is not None and rates.factor is not None
        if self._on_device:
            self._make_table(rates)

    def _make_table(self, rates: Rates) -> None:
        """Put the rates of the whole run on the device, and a tensor in every group's place for its own."""
        assert rates.factor is not None and rates.total is not None
        # torch's kernels for CUDA read a float32; elsewhere the rate is what the host would have given.
        dtype = torch.float32 if self._device.type == "cuda" else torch.float64
        factors = [rates.factor(step) for step in range(rates.total)]
        self._table = torch.tensor(factors, dtype=dtype, device=self._device)
        self._device_bases = torch.tensor(self._bases, dtype=dtype, device=self._device)
        for group, base in zip(self.optimizer.param_groups, self._bases, strict=True):
            group["lr"] = torch.tensor(base, dtype=dtype, device=self._device)

    def apply(self, max_norm: float | None, whole: Tensor | None = None) -> Outcome:
        """Run one update; gradients hold the window's sum (times the loss scale) and are cleared.

        whole: a scalar on the device, false where the reduction was cut off; then nothing is done but that, and the
        outcome's norm is negative.
        """
        gradients = gradients_of(self._parameters)
        if self._has_dtensors:
            gradients = [local_part(gradient) for gradient in gradients]
        norm = self._norm(gradients)
        # Unscaling and clipping are one division.
        divisor = None
        if self._loss_scale is not None:
            divisor = self._loss_scale.scale
            norm = norm / divisor
        if max_norm is not None:
            excess = ((norm + CLIP_EPSILON) / max_norm).clamp(min=1.0)
            divisor = excess if divisor is None else excess * divisor
        if divisor is not None and gradients and not self._divides:
            torch._foreach_div_(gradients, divisor)
        if whole is not None:
            norm = torch.where(whole, norm, -1.0)
            schedule = None if self._scheduler is None else dict(self._scheduler.state_dict())
            self._before.append((self._completed, schedule))
        applied = (torch.isfinite(norm) & (norm >= 0)).float()
        rate = self._set_rate()
        stepped = None  # not known to the host
        self.entered = True
        if self._fused:
            self._step_on_device(applied, divisor)
        elif stepped := bool(applied):
            self.optimizer.step()
        self._count(applied, stepped, whole)
        self.clear()
        return Outcome(norm, applied, rate)

    def _step_on_device(self, applied: Tensor, divisor: Tensor | None) -> None:
        """Let the kernels decide whether to step, and divide the gradients by what torch's GradScaler calls a scale."""
        optimizer: Any = self.optimizer
        optimizer.found_inf = 1 - applied
        if divisor is not None and self._divides:
            optimizer.grad_scale = divisor.float()
        try:
            optimizer.step()
        finally:
            vars(optimizer).pop("grad_scale", None)
            del optimizer.found_inf

    def _set_rate(self) -> Tensor | float:
        """Set every group's rate for the update that is due; returns the first group's."""
        groups = self.optimizer.param_groups
        if self._on_device:
            assert self._counter is not None
            # Not by table[counter]: torch reads an index of no dimensions on the host.
            factor = self._table.take(self._counter.clamp(max=len(self._table) - 1))
            rates = self._device_bases * factor
            torch._foreach_copy_([group["lr"] for group in groups], rates.unbind())
            return rates[0]
        if self._rates.factor is not None:
            factor_now = self._rates.factor(self._completed)
            for group, base in zip(groups, self._bases, strict=True):
                group["lr"] = base * factor_now
        return float(groups[0]["lr"])

    def _count(self, applied: Tensor, stepped: bool | None, whole: Tensor | None) -> None:
        """Move counters, schedule and loss scale, only for an update that was applied."""
        if self._loss_scale is not None:
            self._loss_scale.update(applied, whole)
        if self._counter is not None:
            self._counter += applied.long()
            return
        if stepped is None:
            # A skip ends the run, so the host need not look; or it does not, and then the host has to.
            stepped = not self._rates.skippable or bool(applied)
        if stepped:
            self._completed += 1
            if self._scheduler is not None and self._rates.interval == "update":
                self._scheduler.step()

    def advance(self, interval: Literal["epoch", "evaluation"], value: float | None) -> None:
        """Move a scheduler of this interval on, at an epoch's end or after an evaluation.

        value: the metric, equal on all ranks, that ReduceLROnPlateau looks at.
        """
        if self._scheduler is None or self._rates.interval != interval:
            return
        if isinstance(self._scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            assert value is not None
            self._scheduler.step(value)
        else:
            self._scheduler.step()

    def take_back(self, num_steps: int) -> None:
        """Count back so many steps, whose reduction turned out to be cut off after the host had counted them."""
        for _ in range(num_steps):
            self._completed, schedule = self._before.pop()
            if schedule is not None and self._scheduler is not None:
                self._scheduler.load_state_dict(schedule)

    def clear(self) -> None:
        """Drop the gradients."""
        drop_gradients(self._parameters)

    def state(self) -> dict[str, Any]:
        """Optimizer, counter, scheduler and loss scale."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "completed": self._completed if self._counter is None else int(self._counter),
            "scheduler": self._scheduler.state_dict() if self._scheduler is not None else None,
            "loss_scale": self._loss_scale.state() if self._loss_scale is not None else None,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state["optimizer"])
        if self._rates.factor is not None:
            # What was loaded may be a number where a device tensor is due, or the other way round.
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                loaded = float(group["lr"])
                group["lr"] = rate.fill_(loaded) if isinstance(rate, Tensor) else loaded
        self._completed = state["completed"]
        if self._counter is not None:
            self._counter.fill_(state["completed"])
        if self._scheduler is not None and state["scheduler"] is not None:
            self._scheduler.load_state_dict(state["scheduler"])
        if self._loss_scale is not None and state["loss_scale"] is not None:
            self._loss_scale.load(state["loss_scale"])


def local_part(tensor: Tensor) -> Tensor:
    """What this process holds of a DTensor; any other tensor itself."""
    part: Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def mixed_norm(gradients: list[Tensor]) -> Tensor:
    """The norm of all of them as one vector, a scalar, whatever their devices and types."""
    return nn.utils.get_total_norm(gradients, foreach=True)


def total_norm(gradients: list[Tensor]) -> Tensor:
    """The norm of all of them as one vector, a scalar; they are of one device and type.

    As torch's get_total_norm, without its sorting by device and type, and at least in float32.
    """
    if not gradients:
        return mixed_norm(gradients)
    dtype = torch.promote_types(gradients[0].dtype, torch.float32)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2, dtype=dtype)))
    return norm


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
