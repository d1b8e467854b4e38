"""What passes between a task, the engine and a strategy: the records and the two protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

Batch = Any
"""Whatever the collate function makes: a tensor, or tuples, lists and mappings of tensors."""


class Loss(NamedTuple):
    """The loss of one micro-batch. A NamedTuple, because torch.compile traces those without a graph break.

    total: sum over counted units (tokens, samples), a scalar; it is divided by the whole window's count.
    aux: mean over the micro-batch's samples, a scalar or None; it is weighed by samples.
    metrics: name -> (sum, weight), each a scalar tensor or number; reported as sum over weight.
    """

    total: Tensor
    aux: Tensor | None = None
    metrics: Mapping[str, tuple[Tensor | float, Tensor | float]] = MappingProxyType({})


class Task(Protocol):
    """What is learned. One instance serves training and evaluation; it holds no state of a run."""

    def count(self, batch: Batch) -> int:
        """Units (tokens or samples) that the loss sums over; called on CPU, in the loader."""
        ...

    def check(self, batch: Batch) -> None:
        """Raise ValueRangeError for ids or labels that the model cannot take; called on CPU, in the loader."""
        ...

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        """Run the model."""
        ...

    def loss(self, outputs: Any, batch: Batch) -> Loss:
        """Turn the outputs into the loss."""
        ...


def needs_count(task: Task) -> bool:
    """Whether the task's total is a mean times its count, so that a micro-batch which counts nothing is 0/0.

    Such a task says so by an attribute `needs_count`; without one its total is a plain sum.
    """
    return bool(getattr(task, "needs_count", False))


class MicroBatch(NamedTuple):
    """One forward and backward pass of one shard.

    A NamedTuple, so that the loader's page-locking reaches the tensors. weight is 0 where the shard has no row of its
    own in the window and only takes part.
    """

    batch: Batch
    units: int
    samples: int
    weight: int = 1


class Scale(NamedTuple):
    """What losses are multiplied by, so that the window's gradient is one mean over all shards."""

    total: float
    """1 over the window's count over all shards."""
    aux: float
    """1 over the window's samples over all shards."""


Sums = dict[str, tuple[Tensor, Tensor | float]]
"""Metric name -> (sum, weight) over this process's part of a window; sums are float64 scalars on the device."""


class Outcome(NamedTuple):
    """What became of an update. Device tensors, so that nobody has to wait for them."""

    norm: Tensor
    """Global gradient norm before clipping, a scalar."""
    applied: Tensor
    """1.0 if the update was applied, 0.0 if it was skipped, a scalar."""
    lr: Tensor | float
    """Learning rate of the first parameter group."""


MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


class Rates(NamedTuple):
    """Where the learning rate comes from, and whether an update may be skipped without ending the run."""

    factor: Callable[[int], float] | None
    """Completed updates -> factor on each group's rate; None: `scheduler` or the optimizer's own constant rate."""
    total: int | None
    """Updates of the whole run, the length of the device's table; None where unknown."""
    scheduler: torch.optim.lr_scheduler.LRScheduler | None
    """A ready torch scheduler, stepped once a completed update."""
    skippable: bool
    """Whether a non-finite gradient skips the update and the run goes on."""


class Strategy(Protocol):
    """Owns one update window; only it knows wrappers, synchronisation and the optimizer."""

    def setup(self, model: nn.Module, task: Task, make_optimizer: MakeOptimizer, rates: Rates) -> None:
        """Take the model to its device, wrap it, make the optimizer."""
        ...

    def window(self, micro_batches: Sequence[MicroBatch], scale: Scale) -> Sums:
        """Forward, backward and reduction of one window; returns this process's metric sums."""
        ...

    def notes(self) -> dict[str, list[str]]:
        """What the other ranks must know of this window before anyone steps (JSON)."""
        ...

    def heed(self, notes: Sequence[dict[str, list[str]]]) -> None:
        """Take in every rank's notes, by rank."""
        ...

    def step(self, max_norm: float | None) -> Outcome:
        """Unscale, clip and update, or skip where the gradient is not finite; gradients are cleared."""
        ...

    def discard(self) -> None:
        """Drop the window that has just run: no update, and buffers as they were before it."""
        ...

    def forward(self, batch: Batch) -> Loss:
        """Evaluation's forward pass: no wrapper, no gradient, no collective."""
        ...

    def state(self) -> dict[str, Any]:
        """Model (the bare module's keys), optimizer and update state, complete on every rank."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave, from any strategy."""
        ...

    def close(self) -> None:
        """Drop wrappers and references; the bare model stays usable."""
        ...
