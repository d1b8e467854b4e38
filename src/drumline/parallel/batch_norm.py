"""BatchNorm where a rank's micro-batch is a single sample; and the one rule for its running statistics.

The rule: in training each rank normalises each micro-batch by that micro-batch's own statistics (SyncBatchNorm: by all
ranks'), and moves its running statistics with it. After each window all ranks take rank 0's, unless
parallel.broadcast_buffers is off, so that the next evaluation, and the next checkpoint, see on every rank what one file
can hold. What does not count moves nothing: a rank that only takes part, a skipped update, a window given up at a stop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle


def has_batch_norm(model: nn.Module) -> bool:
    """Whether `single_sample` changes anything for this model."""
    return bool(batch_norms(model))


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """All of them that normalise by their own process's statistics, and have running ones."""
    return [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm)
        and not isinstance(module, nn.SyncBatchNorm)
        and module.running_mean is not None
    ]


@contextmanager
def single_sample(model: nn.Module) -> Iterator[None]:
    """Inside, a BatchNorm in training that gets one value a channel uses its running statistics, and leaves them.

    torch raises there, on that rank only, since one value has no variance (pytorch #22095, #65907). A BatchNorm that
    gets more, as over the positions of one image, is not touched; one without running statistics still raises. Enter it
    around forward and backward, for activation checkpointing runs the forward pass again. Compiled code is left aside
    meanwhile: hooks would not be seen by it, and its shapes would be compiled anew for this one sample.
    """
    handles: list[RemovableHandle] = []
    borrowed: set[nn.Module] = set()
    modules = batch_norms(model)

    def before(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if module.training and inputs and one_value_a_channel(inputs[0]):
            borrowed.add(module)
            module.training = False

    def after(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if module in borrowed:
            borrowed.remove(module)
            module.training = True

    try:
        for module in modules:
            handles.append(module.register_forward_pre_hook(before))
            handles.append(module.register_forward_hook(after, always_call=True))
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def normalised_apart(model: nn.Module) -> Iterator[None]:
    """Inside, SyncBatchNorm normalises by its running statistics: a pass that this rank makes alone must not meet."""
    together = [module for module in model.modules() if isinstance(module, nn.SyncBatchNorm) and module.training]
    for module in together:
        module.training = False
    try:
        yield
    finally:
        for module in together:
            module.training = True


def one_value_a_channel(values: Any) -> bool:
    """Whether [N, C] or [N, C, ...] holds one value for each of C channels."""
    return isinstance(values, Tensor) and values.dim() > 1 and values.numel() == values.shape[1]
