"""torch.compile of the blocks that a model repeats, or of the objective as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from drumline.errors import ConfigError

Backend = Callable[..., Any]


def compile_blocks(model: nn.Module, **options: Any) -> None:
    """Compile each block that the model repeats, in place, so that the compiler sees one block once.

    options: torch.compile's. Raises ConfigError where no block repeats.
    """
    for block in repeated_blocks(model):
        block.compile(**options)


def repeated_blocks(model: nn.Module, setting: str = "train.compile is blocks") -> list[nn.Module]:
    """The members of the module lists that hold one class twice or more; the outermost such lists only.

    Raises ConfigError, which says that `setting` asks for them, where there are none.
    """
    blocks = find_blocks(model)
    if not blocks:
        key = setting.partition(" ")[0]
        raise ConfigError(
            f"{setting}, and a {type(model).__name__} has no block that repeats",
            "set train.compile to whole, or to none" if key == "train.compile" else f"leave {key} out",
        )
    return blocks


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The same; empty where there are none."""
    blocks: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if module in inside or not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        classes = Counter(type(child) for child in module)
        found = [child for child in module if classes[type(child)] > 1 and any(True for _ in child.children())]
        blocks += found
        inside.update(inner for block in found for inner in block.modules())
    return blocks


def compiled_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks that `compile_blocks` has compiled, in this model or in a copy of it."""
    return [block for block in find_blocks(model) if block._compiled_call_impl is not None]


def run_as_written(blocks: Iterable[nn.Module]) -> None:
    """Undo compile_blocks."""
    for block in blocks:
        block._compiled_call_impl = None


def with_memory_budget(share: float, **settings: Any) -> Backend:
    """Inductor with the partitioner's budget set while it compiles, in whichever thread and whenever that is.

    share: of the activations' memory that may be kept, from 0 to 1. settings: Inductor's own.
    """

    def budgeted_inductor(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        # Here, since to import it takes seconds.
        import torch._functorch.config as partitioner
        from torch._inductor.compile_fx import compile_fx

        with partitioner.patch(activation_memory_budget=share):
            return compile_fx(graph, inputs, config_patches=settings or None)

    return budgeted_inductor
