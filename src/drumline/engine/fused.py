"""torch's fused AdamW and SGD without their Python loops over parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from drumline.parallel.each_gradient import gradients_of


class Kept(NamedTuple):
    """What the kernel takes of one group besides gradients, gathered once."""

    parameters: list[Tensor]
    states: dict[str, list[Tensor]]
    """By the name that torch gives it, in the order of the parameters."""


class _Fused(torch.optim.Optimizer, ABC):
    """Keeps the lists that torch gathers anew for each step.

    They are the very tensors of `state`, so that state_dict and load_state_dict stay torch's. Where a parameter has no
    gradient, or a group has parameters of several kinds, torch's own step is taken.
    """

    elementwise = True
    """It does to a part of a parameter what it does to that part of the whole; see fsdp."""
    _kept: list[Kept] | None = None

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; what a parameter without gradient has is left alone."""
        lists = None if closure is not None else self._lists()
        gradients = [gradients_of(kept.parameters) for kept in lists or ()]
        if lists is None or any(len(g) != len(kept.parameters) for g, kept in zip(gradients, lists, strict=True)):
            return super().step(closure)
        with torch.no_grad():
            for group, kept, found in zip(self.param_groups, lists, gradients, strict=True):
                self._update(group, kept, found)
        return None

    @abstractmethod
    def _update(self, group: dict[str, Any], kept: Kept, gradients: list[Tensor]) -> None:
        """Run the kernel on one group."""

    @abstractmethod
    def _names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """What the state of each parameter of this group consists of."""

    def _lists(self) -> list[Kept] | None:
        """The lists, gathered anew where what they came from was replaced; None while torch has to take the step."""
        if self._kept is None or not all(map(self._is_current, self.param_groups, self._kept)):
            self._kept = None
            devices = {p.device for group in self.param_groups for p in group["params"]}
            if len(devices) == 1 and all(map(self._can_keep, self.param_groups)):
                self._kept = [self._gather(group) for group in self.param_groups]
        return self._kept

    def _can_keep(self, group: dict[str, Any]) -> bool:
        """Whether the group is of one device and type, and has all its state: torch makes that in the first step."""
        names = self._names(group)
        kinds = {(type(p), p.dtype) for p in group["params"]}
        whole = all(name in self.state.get(p, ()) for p in group["params"] for name in names)
        # A DTensor is no tensor of one device: torch's step knows how to treat it.
        return whole and len(kinds) == 1 and not hasattr(group["params"][0], "_local_tensor")

    def _gather(self, group: dict[str, Any]) -> Kept:
        parameters = group["params"]
        return Kept(parameters, {name: [self.state[p][name] for p in parameters] for name in self._names(group)})

    def _is_current(self, group: dict[str, Any], kept: Kept) -> bool:
        """Whether the lists are still of what the group trains; whoever replaces state replaces all of it."""
        first = self.state.get(kept.parameters[0], {})
        return group["params"] is kept.parameters and all(first.get(n) is v[0] for n, v in kept.states.items())


class FusedAdamW(_Fused, torch.optim.AdamW):
    """torch.optim.AdamW(fused=True), equal to the bit."""

    def __init__(self, params: Any, **settings: Any) -> None:
        super().__init__(params, **settings, fused=True)

    def _names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "step")

    def _update(self, group: dict[str, Any], kept: Kept, gradients: list[Tensor]) -> None:
        steps, found_inf = kept.states["step"], getattr(self, "found_inf", None)
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            kept.parameters,
            gradients,
            kept.states["exp_avg"],
            kept.states["exp_avg_sq"],
            [],
            steps,
            amsgrad=False,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
            grad_scale=getattr(self, "grad_scale", None),
            found_inf=found_inf,
        )
        if found_inf is not None:
            torch._foreach_sub_(steps, [found_inf] * len(steps))


class FusedSGD(_Fused, torch.optim.SGD):
    """torch.optim.SGD(fused=True), equal to the bit."""

    def __init__(self, params: Any, **settings: Any) -> None:
        super().__init__(params, **settings, fused=True)

    def _names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def _update(self, group: dict[str, Any], kept: Kept, gradients: list[Tensor]) -> None:
        torch._fused_sgd_(
            kept.parameters,
            gradients,
            kept.states.get("momentum_buffer", []),
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=group["dampening"],
            nesterov=False,
            maximize=False,
            is_first_step=False,
            grad_scale=getattr(self, "grad_scale", None),
            found_inf=getattr(self, "found_inf", None),
        )
