"""Which modules of a model are sharded as units of their own, and the root that holds them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn.modules.batchnorm import _BatchNorm

from drumline.config.parallel import FsdpParallel
from drumline.errors import ConfigError, DrumlineError
from drumline.parallel.compile import repeated_blocks

NEVER_CALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Modules without a forward pass, before which nothing could be gathered."""

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Root(nn.Module):
    """What runs inside it finds the parameters that are in no unit whole, whichever modules it calls or looks into.

    The model itself is no root: a task may call it several times, or only parts of it.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._entered = False
        self._guard = model.register_forward_pre_hook(self._check)

    def forward(self, call: Callable[[], Any]) -> Any:
        """Whatever the call returns."""
        return call()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, the model may be called; backward passes too, since checkpointing calls it again there."""
        before, self._entered = self._entered, True
        try:
            yield
        finally:
            self._entered = before

    def _check(self, model: nn.Module, inputs: Any) -> None:
        if not self._entered:
            raise DrumlineError(
                "the model was called by itself, and under fsdp each rank holds only a part of its weights",
                "use trainer.evaluate() or trainer.predict(data, forward=...), on all ranks",
            )

    def leave(self) -> None:
        """Let go of the model."""
        self._guard.remove()


def find_units(model: nn.Module, min_params: int) -> list[nn.Module]:
    """The modules to shard by themselves, inner ones first; what is in none of them is the root's.

    The blocks that the model repeats, if they have as many parameters, with modules that are `sharded_alone`; where
    there are none, the smallest modules that have and are no single layers: a task may use a layer's weight directly,
    and the output of a linear layer is a view, which whatever changes it in place (ReLU) cuts off from the hooks. One
    that shares a parameter with what is outside of it (an embedding tied to the head) is left to the root.
    """
    try:
        repeated = dict.fromkeys(repeated_blocks(model))
    except ConfigError:
        repeated = {}
    blocks = [block for block in repeated if size(block) >= min_params and not isinstance(block, NEVER_CALLED)]
    if blocks:
        blocks += [module for module in model.modules() if is_sharded_alone(module) and size(module) >= min_params]
    return [unit for unit in blocks or by_size(model, min_params) if shares_nothing(unit, model)]


def is_sharded_alone(module: nn.Module) -> bool:
    """Whether it says of itself that nothing but its own calls, the last of a pass, reads its parameters."""
    return bool(getattr(type(module), "sharded_alone", False))


def size(module: nn.Module) -> int:
    """Number of parameters."""
    return sum(p.numel() for p in module.parameters())


def by_size(model: nn.Module, min_params: int) -> list[nn.Module]:
    """The smallest modules with as many parameters that are not in another such one; inner ones first."""
    units: dict[nn.Module, None] = {}

    def visit(module: nn.Module) -> int:
        left = sum(p.numel() for p in module.parameters(recurse=False))
        for child in module.children():
            inside = visit(child)
            if inside >= min_params and any(True for _ in child.children()) and not isinstance(child, NEVER_CALLED):
                units[child] = None
                inside = 0
            left += inside
        return left

    visit(model)
    return list(units)


def shares_nothing(unit: nn.Module, model: nn.Module) -> bool:
    """Whether no parameter of the unit is a parameter of a module outside of it too."""
    everywhere, inside = places(model), places(unit)
    return all(everywhere[p] == count for p, count in inside.items())


def places(module: nn.Module) -> Counter[nn.Parameter]:
    """In how many places each parameter is."""
    return Counter(p for each in module.modules() for p in each._parameters.values() if p is not None)


def own_modules(unit: nn.Module, units: set[nn.Module]) -> Iterator[nn.Module]:
    """The unit and what is inside it, but for inner units."""
    yield unit
    for child in unit.children():
        if child not in units:
            yield from own_modules(child, units)


def policy_of(modules: list[nn.Module], precision: str, settings: FsdpParallel) -> MixedPrecisionPolicy:
    """In which types a unit of these modules is gathered and its gradients are reduced.

    In half precision float32 parameters are gathered rounded, which halves the traffic and saves autocast its own
    rounding; autocast stays on, so that norms and losses are in float32 and inputs are what each operation wants.
    Shards, optimizer and the sum of gradients stay float32 (reduce_precision: bf16 rounds the latter on the wire). What
    BatchNorm has is gathered as it is, since its kernels want parameters of their statistics' type; so is all that is
    not float32. Raises ConfigError for a unit that trains parameters of several types.
    """
    parameters = [p for module in modules for p in module._parameters.values() if p is not None]
    trained = {p.dtype for p in parameters if p.requires_grad}
    if len(trained) > 1:
        raise ConfigError(
            f"a {type(modules[0]).__name__} trains parameters of several types: {', '.join(map(str, trained))}",
            "give them one type, or use parallel.kind ddp",
        )
    plain = all(p.dtype == torch.float32 for p in parameters if p.is_floating_point())
    rounds = (
        plain
        and all(p.is_floating_point() for p in parameters)  # else packed weights, whose scales must stay as they are
        and not any(isinstance(module, _BatchNorm) for module in modules)
    )
    param_dtype = HALF.get(precision) if rounds else None
    reduce_dtype = None
    if plain and settings.reduce_precision == "bf16":
        reduce_dtype = torch.bfloat16
    elif param_dtype is not None:
        reduce_dtype = torch.float32
    return MixedPrecisionPolicy(param_dtype, reduce_dtype, cast_forward_inputs=False)
