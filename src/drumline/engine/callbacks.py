"""Callbacks: a user's own code at the turning points of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drumline.engine.process import own_collector
from drumline.engine.records import Result, StepInfo
from drumline.errors import ConfigError

if TYPE_CHECKING:
    from drumline.engine.trainer import Trainer

logger = logging.getLogger("drumline")


class Callback:
    """Base class: override what you need. A plain function(trainer, info) does what `on_update` does.

    All methods are called on every rank, in the order of `callbacks=`. They may call `trainer.log` and `trainer.stop`
    on any rank; `trainer.evaluate`, `predict` and `save` only on all ranks alike. What one raises, on whichever rank,
    ends the run on all ranks with that message. After an update the order is: `on_evaluation`, `on_save`,
    `on_epoch_end`, `on_update`, each only where there was such a thing.
    """

    def on_start(self, trainer: Trainer) -> None:
        """Training begins: before the first update of each `fit()` or `steps()`."""

    def on_update(self, trainer: Trainer, info: StepInfo) -> None:
        """An update has ended, with the log line and the evaluation that go with it."""

    def on_epoch_end(self, trainer: Trainer, info: StepInfo) -> None:
        """The update was its epoch's last one (`info.epoch`), and all that is due then is done."""

    def on_evaluation(self, trainer: Trainer, info: StepInfo) -> None:
        """The held-out data was evaluated: `info.evaluation` has the metrics, equal on all ranks."""

    def on_save(self, trainer: Trainer, path: Path) -> None:
        """A checkpoint is complete in this directory; one that was written meanwhile is of an earlier update."""

    def on_end(self, trainer: Trainer, result: Result | None) -> None:
        """Training ended: with its result; with None where it failed or the caller left the loop.

        After a failure only `model` and `run_dir` of the trainer can be used, and what this raises is only logged.
        """


class OnUpdate(Callback):
    """A plain function as a callback."""

    def __init__(self, function: Callable[[Trainer, StepInfo], None]) -> None:
        self._function = function

    def on_update(self, trainer: Trainer, info: StepInfo) -> None:
        """Call the function."""
        self._function(trainer, info)


AnyCallback = Callback | Callable[["Trainer", StepInfo], None]
"""What `callbacks=` takes: also any object that has some of Callback's methods."""

METHODS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def as_callback(given: AnyCallback) -> Any:
    """A function becomes a Callback. Raises ConfigError for what has none of its methods and cannot be called."""
    if isinstance(given, type):
        raise ConfigError(f"callbacks= has the class {given.__name__}", f"make an object of it: {given.__name__}()")
    if any(hasattr(given, name) for name in METHODS):
        return given
    if not callable(given):
        raise ConfigError(
            f"callbacks= has a {type(given).__name__}",
            "give functions of (trainer, info), or objects of a class made from drumline.Callback",
        )
    return OnUpdate(given)


class Callbacks:
    """All callbacks of a run, with the trainer that they are called with."""

    def __init__(self, trainer: Trainer | None = None, callbacks: Sequence[Any] = ()) -> None:
        self._trainer = trainer
        self._callbacks = callbacks

    def tell(self, name: str, *about: Any) -> None:
        """Call the method of this name of each that has it, with the trainer first."""
        with own_collector() if self._callbacks else nullcontext():
            for callback in self._callbacks:
                if (method := getattr(callback, name, None)) is not None:
                    method(self._trainer, *about)

    def give_up(self) -> None:
        """Tell of an end without a result; what is raised then must not hide why."""
        try:
            self.tell("on_end", None)
        except Exception:
            logger.exception("on_end failed too")
