"""All that one run holds while it runs, and what it has learned so far."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from drumline.config.schema import RunConfig
from drumline.data.windows import Feed
from drumline.engine.callbacks import Callbacks
from drumline.engine.checkpoint import Checkpointer
from drumline.engine.hang import Pulse
from drumline.engine.marks import Marks
from drumline.engine.meter import Meter
from drumline.engine.outside import Outside
from drumline.engine.pending import Known, Numbers, Pending
from drumline.engine.profiling import Profile
from drumline.engine.recorder import Recorder
from drumline.engine.stopping import Patience
from drumline.errors import NonFiniteError
from drumline.parallel.groups import Groups
from drumline.parallel.side_channel import Recovery
from drumline.parallel.strategy import Strategy, Task
from drumline.plan.record import Plan
from drumline.rundir import LineWriter, Lock, RunDir
from drumline.track.protocol import Tracker

logger = logging.getLogger("drumline")

_OUTSIDE, _RESTART = 1, 2
"""Places among the kinds of stops, see `Run.asks`: 0 is the user's own code, 1 a signal, a request or a time limit."""


@dataclass
class Progress:
    """Where a run stands; all of it is in a checkpoint and equal on all ranks."""

    step: int = 0
    """Updates begun, less those known to be skipped: completed updates, once nothing is pending."""
    epoch: int = 0
    window: int = 0
    """Next window of the epoch."""
    skipped: int = 0
    skipped_in_a_row: int = 0
    patience: Patience = field(default_factory=Patience)
    history: list[dict[str, float]] = field(default_factory=list)
    micro_batch: int | None = None
    """Samples a pass and shard that were found to fit; None: the plan's."""
    evaluation_batch: int | None = None
    """The same of an evaluation."""
    num_shards: int | None = None
    """Shards that these two were found with."""
    since_shrunk: int = 0
    """Updates since the micro-batch last had to shrink."""
    owes_evaluation: bool = False
    """Whether a stop cut an evaluation short, which is made up for first thing after a resume."""
    meters: dict[str, list[float]] = field(default_factory=dict)
    """What the log interval has summed up so far, see meter.by_rank; in a checkpoint only."""
    rows: int | None = None
    """Training rows of an epoch; None for a stream, and where a checkpoint does not say."""

    def begin_epoch(self, epoch: int) -> None:
        """Stand before the first window of this epoch."""
        self.epoch, self.window = epoch, 0

    @property
    def position(self) -> tuple[int, ...]:
        """What two checkpoints of one run differ in."""
        return self.step, self.epoch, self.window, self.skipped, len(self.history)

    def to_state(self) -> dict[str, Any]:
        """As plain values."""
        values = dict(vars(self))
        values["patience"] = vars(self.patience)
        return values

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Progress:
        """Back from plain values."""
        return cls(**{**state, "patience": Patience(**state["patience"])})


@dataclass
class Interval:
    """What is counted between two log lines."""

    began: float
    waited_s: float = 0.0
    samples: int = 0
    units: int = 0


@dataclass
class Run:
    """The parts of a run, assembled by `engine.start`."""

    config: RunConfig
    plan: Plan
    groups: Groups
    directory: RunDir
    model: nn.Module
    tasks: Mapping[str, Task]
    """By learner, in their order; the first one's count and unit are those of the run."""
    strategy: Strategy
    feed: Feed
    evaluation_feed: Feed | None
    pending: Pending
    flops_per_unit: float | None
    """Training FLOPs of one counted unit; None where the model's are not known."""
    peak_flops: float | None
    """Of one device, at the run's precision; None where not known."""
    checkpoints: Checkpointer
    """Saves the run's state."""
    trackers: Sequence[Tracker] = ()
    callbacks: Callbacks = field(default_factory=Callbacks)
    events: LineWriter | None = None
    profile: Profile | None = None
    """Watches a few updates, where train.profile asks for it."""
    clock: Callable[[], float] = time.perf_counter
    meter: Meter = field(default_factory=Meter)
    progress: Progress = field(default_factory=Progress)
    marks: Marks = field(default_factory=Marks)
    """Where it stood before its newest windows."""
    outside: Outside = field(default_factory=Outside)
    """Where this rank hears of signals, requests and time limits."""
    pulse: Pulse = field(default_factory=Pulse)
    """Where this rank is, for the thread that watches it."""
    stop_reason: str | None = None
    """Asked for on this rank by the user's own code; not agreed yet."""
    reason: str | None = None
    """Why the run ended, agreed by all ranks; None while it goes on."""
    interrupted: bool = False
    """Whether that reason is one from outside (a signal, a request, a time limit): the run can be resumed."""
    restarts: bool = False
    """Whether it is one of these, and the run is to go on at once, in new processes."""
    finished: str | None = None
    """Why an earlier attempt ended for good, so that nothing is left to train."""
    lock: Lock | None = None
    """Keeps others out of the run directory; rank 0's."""
    recorder: Recorder | None = None
    """Records this machine's GPUs, where this rank is its first."""
    save_asked: bool = False
    """Whether a save was asked for from outside, agreed by all ranks; it is made after the update."""

    @property
    def first_shard(self) -> int:
        """The first of this process's data shards, among those of all processes."""
        return self.groups.world.rank * (self.plan.num_shards // self.plan.world_size)

    def __post_init__(self) -> None:
        self.pulse.directory = self.directory
        self.began = self.clock()
        self.interval = Interval(self.began)
        self.last = [Numbers(math.nan, True, math.nan) for _ in self.tasks]
        """Of the newest updates that are known, by learner."""
        self.saved_at: tuple[int, ...] | None = None
        """Position of the newest checkpoint of this run."""

    @property
    def task(self) -> Task:
        """The first learner's, whose count and unit are those of the run."""
        return next(iter(self.tasks.values()))

    @property
    def last_norm(self) -> float:
        """Gradient norm of the first learner's newest update that is known."""
        return self.last[0].norm

    @property
    def last_lr(self) -> float:
        """Learning rate of the same update."""
        return self.last[0].lr

    def learners_numbers(self) -> dict[str, float]:
        """Norm and rate of each learner's newest update, by the names of a log line; empty where there is only one."""
        if len(self.tasks) == 1:
            return {}
        return {
            f"{name}/{key}": value
            for name, numbers in zip(self.tasks, self.last, strict=True)
            for key, value in (("lr", numbers.lr), ("grad_norm", numbers.norm))
        }

    @property
    def is_rank_zero(self) -> bool:
        """Whether this rank writes the run directory."""
        return self.groups.world.rank == 0

    @property
    def may_skip(self) -> bool:
        """Whether an update with a gradient that is not finite is skipped, rather than the run ended."""
        return self.config.train.non_finite == "skip" or self.plan.precision == "fp16"

    def wants_to_stop(self) -> bool:
        """Whether this rank asks for a stop, or all have agreed on one; for looking often, and not agreed itself."""
        asked = self.outside.look() is not None or self.outside.wants_restart() is not None
        return self.reason is not None or self.stop_reason is not None or asked

    def asks(self) -> dict[str, Any]:
        """What this rank asks for, to be sent with the next exchange, whose answers go to `heed`."""
        reasons = (self.stop_reason, self.outside.look(), self.outside.wants_restart())
        stop = next(((reason, kind) for kind, reason in enumerate(reasons) if reason is not None), None)
        save = self.outside.wants_save() or self.checkpoints.overdue(self.clock())
        return {"stop": stop, "save": save, "written": self.checkpoints.written}

    def heed(self, answers: Sequence[Mapping[str, Any]]) -> None:
        """Take in what the ranks ask for, alike on all: why the run stops, and whether it is saved."""
        if any(answer["save"] for answer in answers):
            self.save_asked = True
            self.outside.save_is_agreed()
        self.checkpoints.heed([answer["written"] for answer in answers])
        stops = [answer["stop"] for answer in answers if answer["stop"]]
        if self.reason is None and stops:
            # What the user's code asked for goes first: that run is done, and need not be resumed. A restart goes last.
            self.reason, kind = min(stops, key=lambda stop: stop[1])
            self.interrupted, self.restarts = kind > 0, kind == _RESTART
            if kind == _OUTSIDE:
                self.outside.stop_is_agreed(self.reason)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Around what is not training (evaluation, checkpoint): the GPUs' records tell it apart."""
        return nullcontext() if self.recorder is None else self.recorder.phase(name)

    def event(self, name: str, **facts: Any) -> None:
        """Write one line to events.jsonl, on rank 0."""
        if self.events is not None:
            self.events.write({"event": name, "rank": self.groups.world.rank, **facts})

    def track(self, record: dict[str, Any]) -> None:
        """Hand a record to every tracker, on rank 0."""
        for tracker in self.trackers:
            tracker.log(record)

    def learn(self, *, keep: int) -> None:
        """Take in the outcomes that are known, all but the newest `keep`.

        With several learners a window counts where none of their updates was skipped. Raises NonFiniteError where the
        policy says stop, or after too many skipped updates in a row. The norm is of the reduced gradient, so that every
        rank comes to the same end here.
        """
        void = False
        for known in self.pending.take(keep):
            if any(numbers.norm < 0 for numbers in known.learners):
                void = True
                continue
            self.last = known.learners
            if all(numbers.applied for numbers in known.learners):
                self.progress.skipped_in_a_row = 0
                continue
            self.progress.step -= 1
            self.progress.skipped += 1
            self.progress.skipped_in_a_row += 1
            self._non_finite(known)
        if void:
            raise Recovery

    def _non_finite(self, known: Known) -> None:
        name, norm = next((n, o.norm) for n, o in zip(self.tasks, known.learners, strict=True) if not o.applied)
        step = f"{known.step}" if len(self.tasks) == 1 else f"{known.step} of {name}"
        train = self.config.train
        what = "NaN" if math.isnan(norm) else "infinite"
        if train.non_finite == "stop" and self.plan.precision != "fp16":
            raise NonFiniteError(
                f"the gradient of update {step} is {what}",
                "lower train.lr, look at the data of this update, or go on past it with train.non_finite=skip",
            )
        in_a_row = self.progress.skipped_in_a_row
        if in_a_row >= train.max_skipped:
            raise NonFiniteError(
                f"{in_a_row} updates in a row had a gradient that is not finite, the last one update {step}",
                "lower train.lr, or use bf16 or fp32 (train.precision)",
            )
        logger.warning("update %s skipped: its gradient is %s", step, what)
        self.event("skipped", step=known.step, in_a_row=in_a_row)
