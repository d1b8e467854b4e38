"""What prediction's parts hand each other: rows, batches, answers, and what a task must be able to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Facts = dict[str, Any]
"""What all workers of a run agree on, as JSON has it: `tokens` (the budget of a batch) and what the task's own `survey`
gives. Found once, by whoever plans first, and kept in the ledger."""

Answer = dict[str, Any]
"""The columns that one row gets, by name, as JSON has them; of a row that failed: only `error`, with the reason."""

ERROR = "error"
"""The column that says why a row has no answer; null where it has one."""


@dataclass(frozen=True)
class Row:
    """One row of the input."""

    number: int
    """Its place, from 0."""
    values: Mapping[str, Any]
    """By column; empty where it could not be read."""
    problem: str | None = None
    """Why it could not be read."""


@dataclass(frozen=True)
class Prepared:
    """A row as a task's model takes it."""

    number: int
    length: int
    """What it is padded from, in tokens (of images 1)."""
    size: int
    """What it counts in the budget: its length, and what is written after it."""
    payload: Any = None
    """The task's own, such as token ids."""


@dataclass(frozen=True)
class Batch:
    """Rows that go through the model together; planned once."""

    number: int
    """Over the whole run, from 0."""
    rows: tuple[int, ...]
    """The longest first."""
    width: int
    """To which each is padded: the longest one's length."""


@dataclass(frozen=True)
class Window:
    """Rows that were planned together: they follow each other in the input."""

    number: int
    first_row: int
    num_rows: int
    batches: tuple[Batch, ...]
    problems: Mapping[int, str] = field(default_factory=dict)
    """Rows that no batch holds, since something is wrong with them, by their number."""


@dataclass(frozen=True)
class Part:
    """Rows of a batch that did not go through whole."""

    rows: tuple[int, ...]
    shape: tuple[int, int] | None = None
    """From which place of the batch to before which stand the rows that make up the shape it is run in; None: all.
    Those that are not its own are filled in for, so that its own get the very answers that the whole shape would have
    given, whichever failed or was deadly. Only where memory ran out is the shape a smaller one."""
    starts: int = 0
    """How often a worker has begun it."""
    problem: str | None = None
    """Of a single row that failed alone: what it gets as its error. Then it is not run any more."""


class Predictor(Protocol):
    """A task with its model in one process. `prepare` and `survey` are called from several threads, `run` from one."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that an answer has, in their order, without `error`."""

    def prepare(self, rows: Sequence[Row]) -> list[Prepared | str]:
        """Bring rows into the model's form, on the CPU; a text says what is wrong with that row. Pure."""

    def survey(self, prepared: Sequence[Prepared]) -> Facts:
        """What this task wants all workers to agree on, from the rows of the first window. Pure."""

    def settle(self, facts: Facts) -> None:
        """Take what all agree on, before the first `run`; called again where more is known. May measure and warm up."""

    def run(self, rows: Sequence[Prepared | None], width: int) -> list[Answer]:
        """Answers for the rows that are there, in their order, as if the batch had `len(rows)` rows of `width` tokens.

        None stands for a row that is filled in for. May raise anything: torch.OutOfMemoryError makes the batch
        smaller, everything else is taken for the fault of one of its rows.
        """
