"""The trainer: five lines around your own model and data."""

from __future__ import annotations

import atexit
import difflib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

import torch
from torch import nn

from drumline.config.schema import RunConfig
from drumline.config.train import TrainConfig
from drumline.data.source import Collate, as_source
from drumline.engine.callbacks import AnyCallback, Callbacks, as_callback
from drumline.engine.ending import end_run, fail, failing_together, release, write_exit
from drumline.engine.evaluate import evaluate
from drumline.engine.foreign import load_any
from drumline.engine.learners import by_learner, choose_tasks, optimizers_by_learner
from drumline.engine.learning import check_interval, check_scheduler
from drumline.engine.loop import run_updates
from drumline.engine.outside import outside_of
from drumline.engine.predict import predict
from drumline.engine.process import (
    expandable_segments,
    explain_nondeterministic,
    no_collector,
    own_collector,
    process_settings,
)
from drumline.engine.records import Result, StepInfo
from drumline.engine.run import Run
from drumline.engine.start import Parts, start_run
from drumline.errors import ConfigError, DrumlineError, Interrupted, RestartNeeded
from drumline.launcher.notices import Notice, noting
from drumline.launcher.spec import MARK
from drumline.launcher.world import World
from drumline.parallel.strategy import Scheduler
from drumline.rundir import RunDir
from drumline.track.protocol import RECORD_KEYS, Tracker

Optimizers = torch.optim.Optimizer | Callable[[nn.Module], torch.optim.Optimizer]


class Options(TypedDict, total=False):
    """What a Trainer takes besides model, config and training data; all of it optional."""

    eval_data: Any
    """Held-out data, in any form that training data has."""
    loss: Any
    """`loss(model, batch)`, or a Task. None: from the model, where it is ours or Hugging Face's. A mapping of several
    by name, as a GAN needs: in each update they take turns in its order, each with its optimizer."""
    count: Callable[[Any], int]
    """Units of a batch that the mean returned by `loss` is over; none: its samples. Several losses share it."""
    collate: Collate
    """Rows to batch; none: the DataLoader's, or torch's default."""
    optimizer: Optimizers | Mapping[str, Optimizers]
    """A ready optimizer over the model's parameters, or how to make one; with several losses a mapping by their names,
    of optimizers that have no parameter in common."""
    scheduler: Scheduler | Mapping[str, Scheduler]
    """A ready scheduler on that optimizer, moved on as `train.schedule.interval` says; a mapping as with optimizer."""
    callbacks: Sequence[AnyCallback]
    """Functions of (trainer, info), called after each update on every rank, or Callback objects."""
    trackers: Sequence[Tracker]
    """Where metrics go besides metrics.jsonl and the console."""
    world: World
    """Explicit rank, world size and init_method; none: from the launcher's environment."""
    run: RunDir
    """A run directory that is prepared already."""


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for a keyword that is none of Options, which Python itself would let pass."""
    for name in options:
        if name not in Options.__annotations__:
            near = difflib.get_close_matches(name, Options.__annotations__, n=1, cutoff=0.5)
            known = f"did you mean {near[0]}=?" if near else f"it takes {', '.join(Options.__annotations__)}"
            raise ConfigError(f"Trainer takes no {name}=", known)


class Trainer:
    """Trains a model on every process of the world, with the numbers of one.

    model: any nn.Module. config: a TrainConfig, or a whole RunConfig. train_data: a torch Dataset, IterableDataset or
    DataLoader. Raises ConfigError and DataError for what cannot be meant, before a device is taken where that can be
    known; `fit`, `steps` and `evaluate` raise what the run ends with.
    """

    def __init__(
        self, model: nn.Module, config: TrainConfig | RunConfig, train_data: Any, **options: Unpack[Options]
    ) -> None:
        check_options(options)
        run_config = RunConfig(train=config) if isinstance(config, TrainConfig) else config
        tasks = choose_tasks(model, options.get("loss"), options.get("count"))
        optimizers = optimizers_by_learner(options.get("optimizer"), list(tasks))
        schedulers = by_learner("scheduler", options.get("scheduler"), list(tasks))
        for name in tasks:
            check_scheduler(schedulers[name], optimizers[name])
            check_interval(type(schedulers[name]).__name__, run_config.train.schedule)
        held_out = options.get("eval_data")
        collate = options.get("collate")
        self._parts = Parts(
            config=run_config,
            model=model,
            tasks=tasks,
            train=as_source(train_data, collate),
            evaluation=None if held_out is None else as_source(held_out, collate),
            optimizers=optimizers,
            schedulers=schedulers,
            world=options.get("world"),
            directory=options.get("run"),
            trackers=tuple(options.get("trackers", ())),
        )
        self._callbacks = Callbacks(self, [as_callback(each) for each in options.get("callbacks", ())])
        self._started: Run | None = None
        self._directory: Path | None = None
        self._stop_early: str | None = None
        """Asked for before there was a run."""
        self._ended = False

    @property
    def model(self) -> nn.Module:
        """The bare model; calling it never takes part in a collective.

        Under data_parallel it is the first replica. Under fsdp it holds shards, and cannot be called.
        """
        return self._parts.model

    @property
    def world(self) -> World:
        """Rank of this process and number of processes."""
        return self._run.groups.world

    @property
    def run_dir(self) -> Path:
        """Where this run is kept; known also after it."""
        return self._directory or self._run.directory.path

    @property
    def _run(self) -> Run:
        if self._ended:
            raise DrumlineError("this trainer is closed, or its run has failed", "make a new Trainer")
        if self._started is None:
            self._started = start_run(self._parts)
            self._started.callbacks = self._callbacks
            self._started.outside = outside_of(self._started)
            atexit.register(self._at_exit)
            self._directory = self._started.directory.path
        return self._started

    def fit(self) -> Result:
        """Train to the end; returns what the run came to. All ranks call it, and all return or raise together.

        Raises Interrupted where a signal, a request or a time limit has ended it: the run is saved then.
        """
        for _ in self.steps():
            pass
        return self._result(self._run)

    def _result(self, run: Run) -> Result:
        progress, history = run.progress, tuple(run.progress.history)
        return Result(
            steps=progress.step,
            skipped=progress.skipped,
            reason=run.reason or "done",
            evaluation=history[-1] if history else None,
            run_dir=run.directory.path,
            history=history,
        )

    def steps(self, epochs: int | None = None) -> Iterator[StepInfo]:
        """Train, yielding a record after each update; `epochs` bounds this call. Your own loop goes around it.

        Raises Interrupted where a signal, a request or a time limit has ended it: the run is saved then.
        """
        run = None
        try:
            with noting(self._parts.config.faults.stop_signals) as notice, self._guarded(), no_collector():
                run = self._run
                self._begin(run, notice)
                for info in run_updates(run, epochs):
                    run.pulse.at(f"callbacks after update {info.step}")
                    self._callbacks.tell("on_update", info)
                    with own_collector(), run.pulse.yours():
                        yield info
                self._end(run, saves=epochs is None and run.config.checkpoint.at_end)
        except BaseException:
            if run is not None:
                self._callbacks.give_up()
            raise
        config = self._parts.config
        found_again = self._parts.directory is not None or config.run_dir is not None or config.name is not None
        if run.restarts and found_again and MARK in os.environ:  # a run of a new name each time would begin anew
            raise RestartNeeded(run.reason or "", "start it again: it goes on from its newest checkpoint")
        if run.interrupted:
            raise Interrupted(run.reason or "")

    def _begin(self, run: Run, notice: Notice) -> None:
        run.outside.begin(notice)
        self._parts.model.train()
        run.reason, run.interrupted, run.restarts = run.finished, False, False
        if run.is_rank_zero:
            run.directory.exit.unlink(missing_ok=True)  # it tells of a run that has ended
        run.stop_reason, self._stop_early = self._stop_early, None
        self._callbacks.tell("on_start")

    def _end(self, run: Run, *, saves: bool) -> None:
        """Save what is to be saved, and say how the run ended: before any rank goes its way."""
        run.checkpoints.finish(run)
        if (saves or run.interrupted) and run.saved_at != run.progress.position:
            run.checkpoints.save(run, wait=True)
        self._callbacks.tell("on_end", self._result(run))
        run.groups.side.exchange("end")  # a run whose end fails on one rank has not ended well
        if run.is_rank_zero:
            end_run(run)

    def evaluate(self) -> dict[str, float]:
        """Metrics over the evaluation data, each sample once, equal on all ranks. All ranks call it."""
        with self._guarded():
            return evaluate(self._run)

    def predict(
        self, data: Any, *, collate: Collate | None = None, forward: Callable[[nn.Module, Any], Any] | None = None
    ) -> list[Any]:
        """One prediction a row, in the order of the data set, equal on all ranks; all ranks call it.

        What a prediction is says the task's `predict(outputs, batch)`; forward: `forward(model, batch)` instead of the
        task's. The averaged weights are used where there are such.
        """
        with self._guarded():
            return predict(self._run, data, collate=collate, forward=forward)

    def log(self, name: str, value: float | torch.Tensor, weight: float = 1.0) -> None:
        """Add a value to the next log line: a mean over ranks and updates with these weights. Any rank may call it.

        Raises ConfigError for a name that the line has already, and for more than one number.
        """
        if name in RECORD_KEYS:
            raise ConfigError(f"{name!r} is in every log line already", f"call it something else, such as my_{name}")
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise ConfigError(f"{name!r} has the shape {list(value.shape)}, not one number", "reduce it with .mean()")
        self._run.meter.log(name, value, weight)

    def stop(self, reason: str = "stopped") -> None:
        """Ask all ranks to stop after the update that has just ended. Any rank may call it, from any thread."""
        if self._started is None and not self._ended:
            self._stop_early = reason  # another thread may be about to start the run
        else:
            self._run.stop_reason = reason

    def busy(self, what: str) -> AbstractContextManager[None]:
        """Around long work of your own on any rank, such as an upload in a callback: it is no hang, and is waited for.

        what: for the report, should something else hang meanwhile.
        """
        return self._run.pulse.busy(what)

    def save(self) -> Path:
        """Save the whole state under the run directory; all ranks call it between two steps."""
        return self._run.checkpoints.save(self._run, wait=True)

    def load(self, path: Path | str) -> None:
        """Go on from a checkpoint directory; all ranks call it, before `fit` or `steps`.

        Anything else that `checkpoint.initial` takes gives the weights alone, and the optimizer's state where it fits.
        """
        load_any(self._run, Path(path))

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """What everything that uses the device runs in: a failure is one of all ranks, settings are put back."""
        hardware, train = self._parts.config.hardware, self._parts.config.train
        segments = expandable_segments(hardware.expandable_segments and hardware.device != "cpu")
        with failing_together(lambda: self._started, self._forget), segments:
            plan = self._run.plan
            settings = process_settings(plan.precision, train.deterministic)
            with settings, explain_nondeterministic(), self._run.pulse.watching():
                yield

    def _forget(self) -> None:
        self._started, self._ended = None, True
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        """End what a script left open, as leaving `with` would: the other ranks must not wait for this one."""
        self.__exit__(None, getattr(sys, "last_value", None), None)

    def close(self) -> None:
        """Give back groups, loader processes and files; the model stays. Closing twice is allowed."""
        run = self._started
        self._forget()
        if run is None:
            return
        if run.is_rank_zero and not run.directory.exit.exists():
            write_exit(run, 0, "closed")
        release(run)
        run.groups.close()
        if run.recorder is not None:
            run.recorder.close()

    def __enter__(self) -> Self:
        """The trainer itself."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close; an error of the caller's own ends the run on all ranks, as one from inside does."""
        run = self._started
        if run is None or error is None or isinstance(error, GeneratorExit | Interrupted | RestartNeeded):
            self.close()
            return
        self._forget()
        fail(run, error)
