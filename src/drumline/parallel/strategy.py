"""What passes between a task, the engine and a strategy: the records and the two protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from drumline.parallel.averaging import Average
    from drumline.parallel.groups import Groups

T = TypeVar("T")

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
    shard: int = 0
    """Which of this process's data shards it belongs to; a process has several only under data_parallel."""


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
    sums: Mapping[str, tuple[Tensor, Tensor | float]] = MappingProxyType({})
    """What is known of the gradient besides, as in Sums."""


MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]
MakeAverage = Callable[[nn.Module], "Average"]
Interval = Literal["update", "epoch", "evaluation"]
Scheduler = torch.optim.lr_scheduler.LRScheduler | torch.optim.lr_scheduler.ReduceLROnPlateau
Notes = dict[str, list[str]]
"""What a rank tells the others of a window, as JSON."""

MAIN = "main"
"""Name of the learner of a run that has only one; its numbers are logged without it."""


class Rates(NamedTuple):
    """Where the learning rate comes from, and whether an update may be skipped without ending the run."""

    factor: Callable[[int], float] | None
    """Completed updates -> factor on each group's rate; None: torch's scheduler or the optimizer's own rate."""
    total: int | None
    """Updates of the whole run, the length of the device's table; None where unknown."""
    make_scheduler: Callable[[torch.optim.Optimizer], Scheduler] | None
    """torch's scheduler on the optimizer, or a ready one."""
    interval: Interval
    """When that scheduler moves on: after each completed update, epoch or evaluation."""
    skippable: bool
    """Whether a non-finite gradient skips the update and the run goes on."""


class Learner(NamedTuple):
    """One loss with the optimizer that follows its gradient; a run has one of them, or several that take turns."""

    task: Task
    make_optimizer: MakeOptimizer
    rates: Rates


class Commits(NamedTuple):
    """Where a strategy stands in its optimizer steps, of all learners together."""

    steps: int
    """Made whole since the run began in this process."""
    torn: bool
    """Whether one was left half made."""


class Triable(Protocol):
    """Tries passes out, of which nothing stays; see `engine.preflight` and `engine.balance`."""

    @property
    def due_bytes(self) -> int:
        """Memory of one device that the first update will take for optimizer state; 0 where all of it is there."""
        ...

    def trial(self, micro_batches: Sequence[MicroBatch], times: int = 1) -> float:
        """Seconds that the passes of every learner over these take, so many times, without a reduction over the ranks.

        The host waits for them, at the end only. Neither a gradient stays nor what they did to buffers, also where
        memory runs out; random streams move. Where `forwards_together`, all ranks make it together.
        """
        ...


class Undoing(Protocol):
    """Windows that do not count: dropped, or given up in a recovery."""

    def discard(self, name: str) -> None:
        """Drop the window that this learner has just run: no update, and buffers as they were before it."""
        ...

    @property
    def can_rebuild(self) -> bool:
        """Whether it can go on with a new training group; else only new processes can."""
        ...

    @property
    def may_be_void(self) -> bool:
        """Whether the host may learn late that a reduction was cut off, and that its step was none therefore."""
        ...

    def give_up(self) -> None:
        """Leave the window at hand, wherever it is: no gradient stays, and nothing that holds the training group."""
        ...

    def committed(self) -> Commits:
        """Steps that were made whole; waits for the device."""
        ...

    def undo(self) -> None:
        """Put buffers back as they were before a window that has not come to the end of its step."""
        ...

    def settle(self, *, applied: bool) -> None:
        """Take in that a step of this window was made elsewhere: its buffers stay, if it was applied."""
        ...

    def hand_over(self, groups: Groups, giver: int, *, takes: bool) -> None:
        """Give weights, average, optimizer and schedule of rank `giver` to those ranks that take them. All call it."""
        ...

    def rebuild(self, groups: Groups, steps: int) -> None:
        """Wrap the model for a new training group, and count steps from here on."""
        ...


class Strategy(Triable, Undoing, Protocol):
    """Owns one update window of each learner; only it knows wrappers, synchronisation and the optimizers."""

    def setup(self, model: nn.Module, learners: Mapping[str, Learner], average: MakeAverage | None = None) -> None:
        """Take the model to its device, wrap it, make the optimizers, in the order of the learners."""
        ...

    @property
    def forwards_together(self) -> bool:
        """Whether a forward pass is a collective, so that in an evaluation all ranks must make equally many."""
        ...

    def seed(self, streams: Callable[[int], None]) -> None:
        """Begin the random streams of a window; streams(i) sets this process's to those of its i-th data shard."""
        ...

    def window(self, name: str, micro_batches: Sequence[MicroBatch], scale: Scale) -> Sums:
        """Forward, backward and reduction of one learner's window; returns this process's metric sums."""
        ...

    def notes(self, name: str) -> Notes:
        """What the other ranks must know of this learner's window before anyone steps (JSON)."""
        ...

    def heed(self, name: str, notes: Sequence[Notes]) -> None:
        """Take in every rank's notes, by rank."""
        ...

    def step(self, name: str, max_norm: float | None) -> Outcome:
        """Unscale, clip and update, or skip where the gradient is not finite; gradients are cleared."""
        ...

    def advance(self, interval: Literal["epoch", "evaluation"], value: float | None) -> None:
        """Move the schedulers of that interval on; value: the agreed metric of an evaluation."""
        ...

    def forward(self, name: str, micro_batch: MicroBatch) -> Loss:
        """Loss of one learner on a batch, for evaluation: as `run` would give it, but compiled where training is."""
        ...

    def run(self, micro_batch: MicroBatch, function: Callable[[nn.Module, Batch], T]) -> T:
        """function(model, batch on the device), for evaluation: no gradient, and no collective of its own."""
        ...

    def averaged(self) -> AbstractContextManager[None]:
        """Inside, the model is what is evaluated: averaged weights if there are such, buffers equal on all ranks."""
        ...

    def state(self) -> dict[str, Any]:
        """Model (the bare module's keys), average, and each learner's optimizer and update.

        All ranks call it, and have equal buffers from then on; complete on rank 0, and on the others where nothing is
        sharded.
        """
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave, from any strategy. Raises ValueError where it has other learners."""
        ...

    def close(self) -> None:
        """Drop wrappers and references; the bare model stays usable, but under fsdp, where it stays sharded."""
        ...
