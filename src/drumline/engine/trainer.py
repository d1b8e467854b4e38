"""The trainer: five lines around your own model and data."""

from __future__ import annotations

import atexit
import difflib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

import torch
from torch import nn

from drumline.config.schema import RunConfig
from drumline.config.train import TrainConfig
from drumline.data.source import Collate, as_source
from drumline.engine.checkpoint import load_checkpoint, save_checkpoint
from drumline.engine.ending import fail, failing_together, release, write_exit
from drumline.engine.evaluate import evaluate
from drumline.engine.loop import run_updates
from drumline.engine.process import process_settings
from drumline.engine.records import Callback, Result, StepInfo
from drumline.engine.run import Run
from drumline.engine.start import Parts, start_run
from drumline.errors import ConfigError, DrumlineError
from drumline.launcher.world import World
from drumline.rundir import RunDir
from drumline.tasks import choose_task
from drumline.track.protocol import RECORD_KEYS, Tracker


class Options(TypedDict, total=False):
    """What a Trainer takes besides model, config and training data; all of it optional."""

    eval_data: Any
    """Held-out data, in any form that training data has."""
    loss: Any
    """`loss(model, batch)`, or a Task. None: from the model, where it is ours or Hugging Face's."""
    count: Callable[[Any], int]
    """Units of a batch that the mean returned by `loss` is over; none: its samples."""
    collate: Collate
    """Rows to batch; none: the DataLoader's, or torch's default."""
    optimizer: torch.optim.Optimizer | Callable[[nn.Module], torch.optim.Optimizer]
    """A ready optimizer over the model's parameters, or how to make one."""
    scheduler: torch.optim.lr_scheduler.LRScheduler
    """A ready scheduler on that optimizer, stepped once a completed update."""
    callbacks: Sequence[Callback]
    """Called after each update, on every rank."""
    trackers: Sequence[Tracker]
    """Where metrics go besides metrics.jsonl and the console."""
    world: World
    """Explicit rank, world size and init_method; none: from the launcher's environment."""
    run: RunDir
    """A run directory that is prepared already."""


def check_scheduler(scheduler: object, optimizer: object) -> None:
    """Raise ConfigError for a scheduler that cannot be stepped once an update."""
    if scheduler is None:
        return
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError("a scheduler was handed in without its optimizer", "give optimizer= too")
    if getattr(scheduler, "optimizer", None) is not optimizer:
        raise ConfigError("the scheduler is another optimizer's", "make it on the optimizer that is handed in")
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ConfigError(
            "ReduceLROnPlateau steps on a metric, not once an update",
            "leave scheduler= out, and call its step(info.evaluation['loss']) in a callback where there is one",
        )


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
        check_scheduler(options.get("scheduler"), options.get("optimizer"))
        held_out = options.get("eval_data")
        collate = options.get("collate")
        self._parts = Parts(
            config=run_config,
            model=model,
            task=choose_task(model, options.get("loss"), options.get("count")),
            train=as_source(train_data, collate),
            evaluation=None if held_out is None else as_source(held_out, collate),
            optimizer=options.get("optimizer"),
            scheduler=options.get("scheduler"),
            callbacks=tuple(options.get("callbacks", ())),
            world=options.get("world"),
            directory=options.get("run"),
            trackers=tuple(options.get("trackers", ())),
        )
        self._started: Run | None = None
        self._directory: Path | None = None
        self._ended = False

    @property
    def model(self) -> nn.Module:
        """The bare model; calling it never takes part in a collective."""
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
            atexit.register(self._at_exit)
            self._directory = self._started.directory.path
        return self._started

    def fit(self) -> Result:
        """Train to the end; returns what the run came to. All ranks call it, and all return or raise together."""
        for _ in self.steps():
            pass
        run = self._run
        progress = run.progress
        history = tuple(progress.history)
        return Result(
            steps=progress.step,
            skipped=progress.skipped,
            reason=run.reason or "done",
            evaluation=history[-1] if history else None,
            run_dir=run.directory.path,
            history=history,
        )

    def steps(self, epochs: int | None = None) -> Iterator[StepInfo]:
        """Train, yielding a record after each update; `epochs` bounds this call. Your own loop goes around it."""
        with self._failing_together(), process_settings(self._run.plan.precision):
            run = self._run
            self._parts.model.train()
            run.reason = run.stop_reason = None
            for info in run_updates(run, epochs):
                for callback in self._parts.callbacks:
                    callback(self, info)
                yield info
            if epochs is None and run.config.checkpoint.at_end:
                save_checkpoint(run)
            if run.is_rank_zero:
                write_exit(run, 0, run.reason or "done")
                run.event("end", step=run.progress.step, reason=run.reason)

    def evaluate(self) -> dict[str, float]:
        """Metrics over the evaluation data, each sample once, equal on all ranks. All ranks call it."""
        with self._failing_together(), process_settings(self._run.plan.precision):
            return evaluate(self._run)

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
        """Ask all ranks to stop after the update that has just ended. Any rank may call it."""
        self._run.stop_reason = reason

    def save(self) -> Path:
        """Save the whole state under the run directory; all ranks call it between two steps."""
        return save_checkpoint(self._run)

    def load(self, path: Path | str) -> None:
        """Go on from a checkpoint directory; all ranks call it, before `fit` or `steps`."""
        load_checkpoint(self._run, Path(path))

    def _failing_together(self) -> AbstractContextManager[None]:
        return failing_together(lambda: self._started, self._forget)

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

    def __enter__(self) -> Self:
        """The trainer itself."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close; an error of the caller's own ends the run on all ranks, as one from inside does."""
        run = self._started
        if run is None or error is None or isinstance(error, GeneratorExit):
            self.close()
            return
        self._forget()
        fail(run, error)
