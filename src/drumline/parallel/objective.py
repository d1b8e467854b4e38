"""A model and its task as one module, and one forward and backward pass through it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drumline.parallel.precision import Precision
from drumline.parallel.strategy import MAIN, Batch, Loss, MicroBatch, Scale, Sums, Task


class Objective(nn.Module):
    """The model and its loss as one module, so that all that a task calls runs inside the strategy's wrapper.

    A task may call the model several times; a wrapper still sees one forward pass.
    """

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__()
        self.model = model
        self._task = task

    def forward(self, batch: Batch) -> Loss:
        """Run the task; metrics are detached, so that a wrapper takes them for no loss."""
        loss = self._task.loss(self._task.forward(self.model, batch), batch)
        metrics = {name: (detached(value), detached(weight)) for name, (value, weight) in loss.metrics.items()}
        return Loss(loss.total, loss.aux, metrics)


def detached(value: Tensor | float) -> Tensor | float:
    """Cut a tensor off the graph; leave a number as it is."""
    return value.detach() if isinstance(value, Tensor) else value


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Copy all tensors of a nested batch, without waiting where they are page-locked.

    What can move itself does (a PackedSequence keeps its sizes on the CPU); other mappings become a dict.
    """
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if hasattr(batch, "to") and callable(batch.to):
        return batch.to(device)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(item, device) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(item, device) for item in batch)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    return batch


@contextmanager
def preserved(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Put buffers and random streams back as they were: a pass that must leave no trace."""
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    python_state, numpy_state, cpu_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    gpu_state = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, before in buffers:
                buffer.copy_(before)
                setattr(module, name, buffer)  # the pass may have put another tensor in its place
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(cpu_state)
        if gpu_state is not None:
            torch.cuda.set_rng_state(gpu_state, device)


def run_pass(
    call: Callable[[Batch], Any], micro_batch: MicroBatch, scale: Scale, precision: Precision, device: torch.device
) -> tuple[Tensor, Loss]:
    """Forward and backward of one micro-batch; returns what backward ran on, and the loss parts."""
    batch = to_device(micro_batch.batch, device)
    with precision.autocast():
        loss = Loss(*call(batch))
    target = loss.total * (scale.total * micro_batch.weight)
    if loss.aux is not None:
        target = target + loss.aux * (scale.aux * micro_batch.samples * micro_batch.weight)
    if precision.loss_scale is not None:
        target = target * precision.loss_scale.scale
    target.backward()
    return target, loss


def add_sums(sums: Sums, loss: Loss, micro_batch: MicroBatch, learner: str = MAIN) -> None:
    """Add one micro-batch's loss and metrics to the window's sums, on the device.

    `total` and `aux` are kept apart here, since they have different denominators; see `engine.meter.means`. One learner
    of several has its name before them.
    """
    if micro_batch.weight == 0:
        return
    before = "" if learner == MAIN else f"{learner}/"
    add(sums, f"{before}total", loss.total.detach(), float(micro_batch.units))
    if loss.aux is not None:
        add(sums, f"{before}aux", loss.aux.detach() * micro_batch.samples, float(micro_batch.samples))
    for name, (value, weight) in loss.metrics.items():
        add(sums, f"metric/{before}{name}", value, weight)


def add(sums: Sums, name: str, value: Tensor | float, weight: Tensor | float) -> None:
    """Add (value, weight) to one name, in float64; tensors of one element, whatever their shape."""
    value = value.double().reshape(()) if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
    weight = weight.double().reshape(()) if isinstance(weight, Tensor) else weight
    if name in sums:
        value, weight = sums[name][0] + value, sums[name][1] + weight
    sums[name] = (value, weight)
