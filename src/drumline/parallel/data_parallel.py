"""A persistent replica and a thread a GPU in one process."""

from __future__ import annotations

import contextvars
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from drumline.config.parallel import DataParallel
from drumline.parallel.batch_norm import has_batch_norm
from drumline.parallel.compute import Compute
from drumline.parallel.flat import Reduction, check_nccl
from drumline.parallel.objective import add
from drumline.parallel.replicas import Replica, copy_to, follow, named, send, twins
from drumline.parallel.shapes import Shapes
from drumline.parallel.shard_streams import ShardStreams
from drumline.parallel.strategy import (
    Batch,
    Learner,
    Loss,
    MakeAverage,
    MicroBatch,
    Notes,
    Outcome,
    Scale,
    Sums,
    T,
)
from drumline.parallel.trial import TrialsInTurn
from drumline.parallel.undoing import OverReplicas

R = TypeVar("R")


class Replicated(TrialsInTurn, OverReplicas):
    """Windows over several replicas of the model in one process, a data shard each.

    On GPUs each replica has a thread of its own, so that nothing of it need be in the main thread; on the CPU they take
    turns. The first replica is the model that was handed in: its buffers and optimizer options go to the others, and
    so do weights that something other than an update has changed, unless through `.data`, which nobody sees.
    """

    def __init__(
        self,
        devices: Sequence[torch.device],
        settings: DataParallel,
        compute: Compute,
        *,
        gradient_noise: bool = False,
    ) -> None:
        """devices: one a replica."""
        self._devices = list(devices)
        self._compiles = compute.compile != "none"
        self._settings = settings
        self._replicas = [
            Replica(each, compute, i, settings.bucket_mb, gradient_noise=gradient_noise)
            for i, each in enumerate(self._devices)
        ]
        self._first, *self._others = self._replicas
        self._streams = ShardStreams(self._devices)
        self._threads: list[ThreadPoolExecutor] = []
        self._reductions: dict[str, Reduction] = {}
        self._shapes = [Shapes() for _ in self._replicas]
        self._ran: list[bool] = []
        """Of the newest window: whether each replica had anything to run."""
        self._versions: list[int] = []
        self._modes: list[tuple[nn.Module, nn.Module]] = []
        """Each module of the first replica with each of its copies."""

    def setup(self, model: nn.Module, learners: Mapping[str, Learner], average: MakeAverage | None = None) -> None:
        """Copy the model to the other devices, and make an optimizer on each replica.

        Raises ConfigError where model or optimizer cannot be copied, and BackendError where NCCL fails its check.
        """
        copies = copy_to(model, self._devices[1:])
        with self._first.here():
            self._first.setup(model, learners, average)
        for replica, copied in zip(self._others, copies, strict=True):
            with replica.here():
                replica.setup(copied, twins(learners, self._first, copied))
            replica.own_code()
        self._modes = [
            (lead, own)
            for replica in self._others
            for lead, own in zip(self._first.model.modules(), replica.model.modules(), strict=True)
        ]
        self._has_batch_norm = has_batch_norm(model)
        if self._others:
            self._join()

    def _join(self) -> None:
        """Put gradients into flat buffers, which are summed, and start the threads."""
        for replica in self._replicas:
            replica.lay_out()
        if self._devices[0].type == "cuda":
            check_nccl(self._devices)
            self._threads = [ThreadPoolExecutor(1, f"drumline-replica-{i}") for i in range(len(self._replicas))]
        self._reductions = {
            name: Reduction([replica.flats[name] for replica in self._replicas], self._devices)
            for name in self._first.parts
        }
        self._send(Replica.weights)
        self._send(Replica.buffers)
        self._note_versions()

    @property
    def forwards_together(self) -> bool:
        """One process waits for nobody."""
        return False

    def seed(self, streams: Callable[[int], None]) -> None:
        """Each replica is a shard."""
        self._streams.begin(streams)

    def window(self, name: str, micro_batches: Sequence[MicroBatch], scale: Scale) -> Sums:
        """Each replica accumulates the gradients of its micro-batches; then all have the sum."""
        if not self._others:
            with self._streams.of(0):
                return self._first.window(name, micro_batches, scale)
        mine: list[list[MicroBatch]] = [[] for _ in self._replicas]
        for micro_batch in micro_batches:
            if micro_batch.weight:
                mine[micro_batch.shard].append(micro_batch)
        self._refresh()
        reduction = self._reductions[name]
        reduction.begin(self._compute_streams())

        def train(replica: Replica) -> Sums:
            with self._streams.of(replica.index):
                return replica.train(name, mine[replica.index], scale, reduction)

        parts = self._each(train, in_turn=self._must_take_turns(name, mine))
        reduction.finish()
        if self._settings.broadcast_buffers:
            self._send(Replica.buffers)
        self._ran = [bool(each) for each in mine]
        return merged(parts, self._devices[0])

    def _must_take_turns(self, name: str, mine: Sequence[Sequence[MicroBatch]]) -> bool:
        """Whether replicas must not run this window side by side.

        torch.compile is not for several threads at once (pytorch #118260), see also `raise_at_tracing`; and how
        `single_sample` leaves compiled code aside holds for the whole process.
        """
        if not self._threads:
            return False
        mode = self._first.model.training
        new = [shapes.are_new(m.batch, name, mode) for shapes, own in zip(self._shapes, mine, strict=True) for m in own]
        alone = self._has_batch_norm and any(m.samples == 1 for own in mine for m in own)
        return any(new) or alone

    def _compute_streams(self) -> list[torch.cuda.Stream]:
        """The streams that the caller's work is on, by replica; none on the CPU."""
        return [torch.cuda.current_stream(device) for device in self._devices if device.type == "cuda"]

    def _each(self, function: Callable[[Replica], R], *, in_turn: bool = False) -> list[R]:
        """function(replica) of all, in their threads; the error of the first that fails, after all have ended."""
        if not self._threads:
            return [self._named(function, replica) for replica in self._replicas]

        def run(replica: Replica, stream: torch.cuda.Stream) -> R:
            # What a thread has of its own: device, stream and grad mode; torch's settings are in the context.
            with torch.cuda.stream(stream), torch.enable_grad():
                if self._compiles:
                    raise_at_tracing(False)
                return self._named(function, replica)

        futures: list[Future[R]] = []
        for thread, replica, stream in zip(self._threads, self._replicas, self._compute_streams(), strict=True):
            futures.append(thread.submit(contextvars.copy_context().run, run, replica, stream))
            if in_turn:
                wait(futures)
        wait(futures)
        return [future.result() for future in futures]

    def _named(self, function: Callable[[Replica], R], replica: Replica) -> R:
        if not self._others:
            return function(replica)
        try:
            return function(replica)
        except BaseException as error:
            again = named(error, replica)
            if again is error:
                raise
            raise again from error

    def _send(self, tensors: Callable[[Replica], list[Tensor]]) -> None:
        """Give the other replicas the first one's."""
        if self._others:
            send(tensors(self._first), [tensors(replica) for replica in self._others], self._devices)

    def _refresh(self) -> None:
        """Bring the other replicas to what was done to the first one since its last update: modes and weights."""
        if not self._others:
            return
        for lead, own in self._modes:
            if own.training != lead.training:
                own.training = lead.training
        if self._versions != [p._version for p in self._first.weights()]:
            self._send(Replica.weights)
            self._note_versions()

    def _note_versions(self) -> None:
        self._versions = [p._version for p in self._first.weights()]

    def notes(self, name: str) -> Notes:
        """The one process's own: nobody else needs to know."""
        return {} if self._others else self._first.notes(name)

    def heed(self, name: str, notes: Sequence[Notes]) -> None:
        """Unused on all replicas: no gradient at all, as one replica would have it. New names are warned of once."""
        if not self._others:
            self._first.heed(name, notes)
            return
        part = self._first.parts[name]
        found: list[Notes] = []
        for replica, ran in zip(self._replicas, self._ran, strict=True):
            unused = replica.flats[name].unused() if ran else []
            found.append(({"unused": unused} if unused else {}) if ran else {"idle": []})
        for parameter in part.unused.heed(found, part.windows):
            for replica in self._replicas:
                replica.flats[name].drop(parameter)

    def step(self, name: str, max_norm: float | None) -> Outcome:
        """The same update on each replica, out of the same gradient."""
        for replica in self._others:
            follow(self._first, replica)
        outcomes = self._each(lambda replica: replica.step(name, max_norm))
        if not self._others:
            return outcomes[0]
        self._note_versions()
        return outcomes[0]._replace(sums=merged([outcome.sums for outcome in outcomes], self._devices[0]))

    def advance(self, interval: Literal["epoch", "evaluation"], value: float | None) -> None:
        """Move the schedulers on; there is one a learner, see `replicas.follow`."""
        self._first.advance(interval, value)

    def forward(self, name: str, micro_batch: MicroBatch) -> Loss:
        """Loss of one learner on a batch, on its shard's replica; on GPUs nobody waits for it."""
        replica = self._replicas[micro_batch.shard]
        with replica.here():
            return replica.forward(name, micro_batch)

    def run(self, micro_batch: MicroBatch, function: Callable[[nn.Module, Batch], T]) -> T:
        """function(model, batch on the device) on the shard's replica, without gradient."""
        replica = self._replicas[micro_batch.shard]
        with replica.here():
            return replica.run(micro_batch, function)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, all replicas are what is evaluated, the averaged weights if there are such, in the first's mode."""
        try:
            with self._first.averaged():
                self._refresh()
                self._send(Replica.buffers)
                yield
        finally:
            if self._first.has_average:
                self._refresh()
                self._send(Replica.buffers)

    def state(self) -> dict[str, Any]:
        """The first replica's; all have its buffers from then on."""
        if not self._settings.broadcast_buffers:
            self._send(Replica.buffers)
        return self._first.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """Load it into each replica; the average is the first one's alone."""
        self._first.load(state)
        for replica in self._others:
            # An optimizer keeps the tensors that it loads where they are on its device already.
            own = copy.deepcopy(dict(state)) if replica.device.type == "cpu" else state
            with replica.here():
                replica.load(own)
        self._note_versions()

    def close(self) -> None:
        """End the threads and drop the copies; the model that was handed in stays usable."""
        for thread in self._threads:
            thread.shutdown()
        if self._threads and self._compiles:
            raise_at_tracing(True)
        self._threads = []
        for replica in self._replicas:
            replica.close()
        self._others, self._reductions, self._modes = [], {}, []
        self._replicas = [self._first]


def raise_at_tracing(raises: bool) -> None:
    """What is compiled already, if it is called while another thread's torch.compile traces: raise, as torch has it.

    Else it runs uncompiled this once: a compilation that `Shapes` did not foresee must not end the run (pytorch
    #126024). The setting is the thread's own or, in older torch, the process's.
    """
    from torch._dynamo import config  # takes seconds where nothing is compiled

    if config.error_on_nested_fx_trace != raises:
        config.error_on_nested_fx_trace = raises


def merged(parts: Sequence[Mapping[str, tuple[Tensor, Tensor | float]]], device: torch.device) -> Sums:
    """The replicas' sums added up, on the first one's device."""
    total: Sums = {}
    for part in parts:
        for name, (value, weight) in brought(part, device).items():
            add(total, name, value, weight)
    return total


def brought(part: Mapping[str, tuple[Tensor, Tensor | float]], device: torch.device) -> Sums:
    """The sums with what lies on another GPU brought here, in one copy."""
    away = [x for pair in part.values() for x in pair if isinstance(x, Tensor) and x.device.type != "cpu"]
    if not away or away[0].device == device:
        return dict(part)
    packed = torch.stack([x.double().reshape(()) for x in away]).to(device, non_blocking=True)
    here = iter(packed.unbind())

    def bring(x: Any) -> Any:
        return next(here) if isinstance(x, Tensor) and x.device.type != "cpu" else x

    return {name: (bring(value), bring(weight)) for name, (value, weight) in part.items()}
