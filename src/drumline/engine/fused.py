"""torch's fused AdamW and SGD without their Python loops over parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from drumline.parallel.each_gradient import gradients_of

SMALL = 2**25
"""Elements up to which a group is left in one piece: a launch takes 21 million at most."""


class Kept(NamedTuple):
    """What the kernel takes of one group besides gradients, gathered once."""

    parameters: list[Tensor]
    states: dict[str, list[Tensor]]
    """By the name that torch gives it, in the order of the parameters."""
    halves: tuple[slice, ...]
    """Parameters that are updated at the same time as the others: a launch of the kernel leaves most of a GPU idle at
    its end, which one on another stream fills."""


def halves_of(parameters: list[Tensor]) -> tuple[slice, ...]:
    """Two runs of them with about as many elements, or one where they are few or on the CPU."""
    ends = list(accumulate(p.numel() for p in parameters))
    cut = bisect_left(ends, ends[-1] / 2) + 1
    if not parameters[0].is_cuda or ends[-1] <= SMALL or cut == len(parameters):
        return (slice(None),)
    return slice(cut), slice(cut, None)


def at_the_same_time(device: torch.device, launches: Sequence[Callable[[], None]]) -> None:
    """Run them, on a GPU each on a stream of its own, and let this thread's stream wait for all."""
    first, *others = launches
    streams = []
    for launch in others:
        streams.append(stream := torch.cuda.Stream(device))
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            launch()
    first()
    for stream in streams:
        torch.cuda.current_stream(device).wait_stream(stream)


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
        states = {name: [self.state[p][name] for p in parameters] for name in self._names(group)}
        return Kept(parameters, states, halves_of(parameters))

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
        launches = [partial(self._launch, group, kept, gradients, half) for half in kept.halves]
        at_the_same_time(kept.parameters[0].device, launches)
        if found_inf is not None:
            torch._foreach_sub_(steps, [found_inf] * len(steps))

    def _launch(self, group: dict[str, Any], kept: Kept, gradients: list[Tensor], half: slice) -> None:
        torch._fused_adamw_(
            kept.parameters[half],
            gradients[half],
            kept.states["exp_avg"][half],
            kept.states["exp_avg_sq"][half],
            [],
            kept.states["step"][half],
            amsgrad=False,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
            grad_scale=getattr(self, "grad_scale", None),
            found_inf=getattr(self, "found_inf", None),
        )


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
