"""torch.compile of the blocks that a model repeats, or of the objective as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from drumline.errors import ConfigError

Backend = Callable[..., Any]

MOST_SIZES = 2
"""Numbers of samples that code is compiled for one by one: a full batch, and the short one at an epoch's end."""

_num_uncompiled = 0
"""Blocks of `uncompiled` that this process is in."""


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


@contextmanager
def uncompiled() -> Iterator[None]:
    """Inside, what is compiled runs as it was written: each size would be compiled for itself, which takes long."""
    global _num_uncompiled
    _num_uncompiled += 1
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        _num_uncompiled -= 1


@contextmanager
def one_shape() -> Iterator[None]:
    """Inside, what is compiled is compiled for its very shapes, as for a run that only ever sees these."""
    import torch._dynamo.config as dynamo  # slow to import, and not needed where nothing is compiled

    before, dynamo.automatic_dynamic_shapes = dynamo.automatic_dynamic_shapes, False
    try:
        yield
    finally:
        dynamo.automatic_dynamic_shapes = before


class Sizes:
    """Lets a full batch keep its own code when a short one comes.

    At the second size that it meets torch.compile makes code for any size, and that runs in the first one's place from
    then on, since the newest code that fits is taken: after the short batch at its end each further epoch would be
    slower. So both are compiled for their own size. Batches that differ in shape at equal samples, as those of texts of
    many lengths do, are left to torch.
    """

    def __init__(self) -> None:
        self._met: dict[Hashable, dict[int, Hashable]] = {}
        self._vary: set[Hashable] = set()

    def entered(self, batch: Any, samples: int, *state: Hashable) -> AbstractContextManager[None]:
        """The context for a pass on this batch. state: what else code is compiled for."""
        if _num_uncompiled or state in self._vary:
            return nullcontext()
        met = self._met.setdefault(state, {})
        tensors = [leaf for leaf in _pytree.tree_leaves(batch) if isinstance(leaf, Tensor)]
        # Numbers of a batch as a whole, such as where its labels are, may differ from batch to batch.
        shape = tuple(each.shape for each in tensors if each.dim() > 1) or tuple(each.shape for each in tensors)
        if shape in met.values():
            return nullcontext()
        if samples in met or len(met) == MOST_SIZES:
            self._vary.add(state)
            return nullcontext()
        met[samples] = shape
        return one_shape()
