"""AdamW whose moments are kept in half precision, updated by torch's own kernel in the parameters' precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

MOST_VALUES = 2**26
"""Values whose moments are widened at a time: 0.5 GiB in float32, for both moments."""

FP16_FACTOR = 4096.0
"""What float16 moments are multiplied by: gradients from 1e-8 to 16 keep their precision, and larger ones count as 16.
A power of two, so that it rounds nothing."""

FP16_LARGEST = 65504.0
"""Of float16."""

MOMENTS = ("exp_avg", "exp_avg_sq")


class HalfStateAdamW(torch.optim.AdamW):
    """torch's AdamW with moments in bfloat16 or float16, rounded to the nearest once an update: half the bytes.

    Some parameters at a time get moments in their own precision, torch updates these, and they are rounded back; so
    arithmetic, `found_inf`, `grad_scale` and rates on the device are torch's, and an update that is skipped changes no
    bit. bfloat16 holds the second moment itself; float16, whose range is too small for squares, its root. Rounding
    swallows changes below half a unit, 2^-9 of a value in bfloat16, so that decay rates must be well below 1 - 2^-9;
    the plan refuses others. state_dict() is that of AdamW, and load_state_dict() takes AdamW's.
    """

    def __init__(self, params: Any, *, half: Literal["bf16", "fp16"], fused: bool, **settings: Any) -> None:
        super().__init__(params, fused=fused, **settings)
        self._half = {"bf16": torch.bfloat16, "fp16": torch.float16}[half]
        self._step_supports_amp_scaling = fused

    def allocate(self) -> None:
        """Make the state of all parameters, before the first update."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.requires_grad:
                    self._state_of(p)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                for part in parts_of([p for p in group["params"] if p.grad is not None]):
                    self._update(part, group)
        return loss

    def _update(self, parameters: list[Tensor], group: Mapping[str, Any]) -> None:
        states = [self._state_of(p) for p in parameters]
        means = [self._widened(state["exp_avg"], p.dtype) for state, p in zip(states, parameters, strict=True)]
        squares = [self._widened(state["exp_avg_sq"], p.dtype) for state, p in zip(states, parameters, strict=True)]
        if self._half is torch.float16:
            torch._foreach_mul_(squares, squares)
        adamw(
            [local(p) for p in parameters],
            [local(p.grad) for p in parameters if p.grad is not None],
            means,
            squares,
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            grad_scale=getattr(self, "grad_scale", None),
            found_inf=getattr(self, "found_inf", None),
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )
        self._keep(states, means, squares)

    def _state_of(self, p: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[p]
        if not state:
            fused = bool(self.defaults["fused"])
            state["step"] = torch.zeros((), dtype=torch.float32, device=p.device if fused else "cpu")
            for name in MOMENTS:
                state[name] = torch.zeros_like(p, dtype=self._half, memory_format=torch.preserve_format)
        return state

    def _widened(self, moment: Tensor, dtype: torch.dtype) -> Tensor:
        """A copy of this rank's part of it; of the second moment's root where moments are float16."""
        wide = local(moment).to(dtype, copy=True)
        return wide.div_(FP16_FACTOR) if self._half is torch.float16 else wide

    def _keep(self, states: list[dict[str, Any]], means: list[Tensor], squares: list[Tensor]) -> None:
        """Round the moments, which are overwritten here, back into the states."""
        if self._half is torch.float16:
            torch._foreach_sqrt_(squares)
            for moments in (means, squares):
                torch._foreach_mul_(moments, FP16_FACTOR)
                torch._foreach_clamp_min_(moments, -FP16_LARGEST)
                torch._foreach_clamp_max_(moments, FP16_LARGEST)
        torch._foreach_copy_([local(state["exp_avg"]) for state in states], means)
        torch._foreach_copy_([local(state["exp_avg_sq"]) for state in states], squares)

    def state_dict(self) -> dict[str, Any]:
        """AdamW's: moments as they are meant, in bfloat16, or in float32 or wider where they are float16 here."""
        found = super().state_dict()
        if self._half is torch.float16:
            parameters = [p for group in self.param_groups for p in group["params"]]
            found["state"] = {
                number: self._meant(state, parameters[number]) for number, state in found["state"].items()
            }
        return found

    def _meant(self, state: Mapping[str, Any], p: Tensor) -> dict[str, Any]:
        dtype = torch.promote_types(p.dtype, torch.float32)
        plain = {name: state[name].to(dtype) / FP16_FACTOR for name in MOMENTS}
        return {**state, "exp_avg": plain["exp_avg"], "exp_avg_sq": plain["exp_avg_sq"].square()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take AdamW's state, or one of this class, whatever the type of its moments."""
        super().load_state_dict(dict(state_dict))  # torch gives moments the parameters' type
        with torch.no_grad():
            for state in self.state.values():
                means, squares = [local(state["exp_avg"]).clone()], [local(state["exp_avg_sq"]).clone()]
                for name in MOMENTS:
                    state[name] = torch.empty_like(state[name], dtype=self._half)
                self._keep([state], means, squares)


def parts_of(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    """Runs of parameters with at most MOST_VALUES values on this rank, or one parameter."""
    part: list[Tensor] = []
    total = 0
    for p in parameters:
        size = local(p).numel()
        if part and total + size > MOST_VALUES:
            yield part
            part, total = [], 0
        part.append(p)
        total += size
    if part:
        yield part


def local(value: Tensor) -> Tensor:
    """The tensor, or this rank's shard of one that is sharded: each value is updated by itself."""
    return value.to_local() if isinstance(value, DTensor) else value
