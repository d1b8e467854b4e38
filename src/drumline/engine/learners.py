"""Learners out of what a user handed in: one loss and optimizer, or several by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from drumline.errors import ConfigError
from drumline.parallel.strategy import MAIN, Batch, Loss, Task, needs_count
from drumline.tasks import choose_task


def choose_tasks(model: nn.Module, loss: Any, count: Callable[[Batch], Any] | None) -> dict[str, Task]:
    """The task of each learner, in the order of a mapping; "main" where there is only one.

    Raises ConfigError for names that could not stand before a metric's, and where choose_task does.
    """
    if not isinstance(loss, Mapping):
        return {MAIN: choose_task(model, loss, count)}
    if len(loss) < 2:
        raise ConfigError(f"loss= is a mapping of {len(loss)}", "give several losses by name, or one without a name")
    for name in loss:
        if not isinstance(name, str) or not name.isidentifier() or name in (MAIN, "metric", "total", "aux"):
            raise ConfigError(f"{name!r} cannot be the name of a loss", "use a plain word, such as generator")
    return {name: choose_task(model, each, count) for name, each in loss.items()}


def by_learner(option: str, given: Any, names: Sequence[str]) -> dict[str, Any]:
    """What an option gives each learner, None for those that it does not name.

    Raises ConfigError where it is a mapping and loss= none, the other way round, or one of other names.
    """
    several = list(names) != [MAIN]
    if not isinstance(given, Mapping):
        if several and given is not None:
            raise ConfigError(
                f"loss= has {len(names)} losses and {option}= is one {type(given).__name__}",
                f"give {option}= a mapping with the same names: {', '.join(names)}",
            )
        return dict.fromkeys(names, given)
    if not several:
        raise ConfigError(f"{option}= is a mapping and loss= is not", "give loss= a mapping with the same names")
    if unknown := [name for name in given if name not in names]:
        raise ConfigError(f"{option}= names {unknown[0]!r}, which loss= does not", f"it has {', '.join(names)}")
    return {name: given.get(name) for name in names}


def optimizers_by_learner(given: Any, names: Sequence[str]) -> dict[str, Any]:
    """Each learner's optimizer, or how to make it. Raises ConfigError where one of several has none."""
    found = by_learner("optimizer", given, names)
    if len(found) > 1 and (without := [name for name, each in found.items() if each is None]):
        raise ConfigError(
            f"nothing says which parameters {without[0]} trains",
            f'give optimizer= a mapping with "{without[0]}": lambda model: torch.optim.Adam(model.<part>.parameters())',
        )
    return found


class CountedTogether:
    """What a loader asks of several tasks: the first one's count is that of all, and each checks the batch."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self.needs_count = any(needs_count(task) for task in tasks)

    def count(self, batch: Batch) -> int:
        """The first task's units."""
        return self._tasks[0].count(batch)

    def check(self, batch: Batch) -> None:
        """Every task's check."""
        for task in self._tasks:
            task.check(batch)

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        """The first task's."""
        return self._tasks[0].forward(model, batch)

    def loss(self, outputs: Any, batch: Batch) -> Loss:
        """The first task's."""
        return self._tasks[0].loss(outputs, batch)


def loader_task(tasks: Mapping[str, Task]) -> Task:
    """The task that batches are counted and checked by."""
    first, *others = tasks.values()
    return CountedTogether([first, *others]) if others else first
