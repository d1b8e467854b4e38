"""Weights of a model that was built on the meta device: made where it trains, the same whatever the world."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from drumline.errors import ConfigError
from drumline.parallel.side_channel import SideChannel

LARGEST_SEED = 2**63


def on_meta(model: nn.Module) -> list[str]:
    """Names of the parameters that have no values yet; tied ones under their first name."""
    return [name for name, p in model.named_parameters() if p.is_meta]


def allocate(modules: Iterable[nn.Module], device: torch.device, made: dict[int, Tensor]) -> None:
    """Give these modules' own parameters and buffers memory without values where they are on the meta device.

    made: by id of what was replaced, so that what is tied stays tied; the same for all calls on one model.
    """
    for module in modules:
        for name, p in list(module._parameters.items()):
            if p is not None and p.is_meta:
                if id(p) not in made:
                    made[id(p)] = nn.Parameter(torch.empty_like(p, device=device), p.requires_grad)
                module._parameters[name] = made[id(p)]  # type: ignore[assignment]
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.empty_like(buffer, device=device)


def room_for_values(model: nn.Module, side: SideChannel, device: torch.device) -> bool:
    """Whether ranks lack values that rank 0 has; those make room for them. All ranks call it."""
    names = on_meta(model)
    answers = side.exchange("values", [names, layout_of(model)])
    first, layout = answers[0]
    if all(other == first for other, _ in answers):
        return False
    check_layouts([other for _, other in answers], layout)
    if names != first:
        allocate(model.modules(), device, {})
    return True


def layout_of(model: nn.Module) -> str:
    """A digest of the names and shapes of the parameters, tied ones under their first name."""
    layout = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    return hashlib.sha256(repr(layout).encode()).hexdigest()


def check_layouts(layouts: Sequence[str], first: str) -> None:
    """Raise ConfigError where ranks have built unlike models: what one sends has no place on another."""
    if any(layout != first for layout in layouts):
        raise ConfigError(
            "rank 0 has read a model with other parameters than its config.json describes to the other ranks",
            "set tie_word_embeddings in config.json to what the file has: false where both tensors are in it",
        )


def materialise(module: nn.Module, device: torch.device, seeds: dict[nn.Module, int], made: dict[int, Tensor]) -> None:
    """Make what the module and those inside it have on the meta device, by each one's own reset_parameters.

    seeds: of each module of the model, see `seeds_of`; made: see `allocate`. Random streams are left as they were.
    Raises ConfigError for a module that has values to make and no reset_parameters.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad():
        for each in module.modules():
            own = [*each._parameters.values(), *each._buffers.values()]
            if not any(value is not None and value.is_meta for value in own):
                continue
            reset: Any = getattr(each, "reset_parameters", None) or getattr(each, "_reset_parameters", None)
            if reset is None:
                raise ConfigError(
                    f"the model is on the meta device, and a {type(each).__name__} cannot make its values anew",
                    "give it a method reset_parameters() that fills its own parameters and buffers, or build the "
                    "model on the CPU (over several ranks: on rank 0)",
                )
            allocate([each], device, made)
            torch.manual_seed(seeds[each])
            reset()


def seeds_of(model: nn.Module, seed: int) -> dict[nn.Module, int]:
    """A seed for each module, so that its values depend neither on who makes them nor on what was made before."""
    return {module: (seed + number) % LARGEST_SEED for number, module in enumerate(model.modules())}
