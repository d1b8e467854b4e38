"""Where a run stood before its newest windows, so that one can be given up and run again."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from drumline.parallel.strategy import Outcome, Scale, Sums

if TYPE_CHECKING:
    from drumline.engine.run import Run

KEPT = 2
"""Windows that may have to be run again: the host of a GPU begins one before it knows what became of the last."""


class Mark(NamedTuple):
    """The place before one window."""

    steps: int
    """Optimizer steps of all learners that this process had made."""
    begun: int
    """Updates begun, those that were skipped included."""
    epoch: int
    window: int
    samples: int
    units: int


@dataclass
class Turn:
    """One window under way: what has become of it so far on this rank."""

    scale: Scale
    runs: bool
    """Whether it has anything to count."""
    largest: int = 0
    """Samples of its largest micro-batch on this rank."""
    agreed: bool = False
    """Whether all ranks have agreed to make the first step."""
    accounted: bool = False
    """Whether its sums are in the log."""
    given_up: bool = False
    """Whether they have agreed to stop before it."""
    outcomes: list[Outcome] = field(default_factory=list)
    """Of the learners that have made their step, in their order."""
    sums: list[Sums] = field(default_factory=list)
    """Of the learners whose passes are through."""
    streams: Any = None
    """Random streams as they were before the newest further learner's passes."""
    phase: str = "forward or backward"


@dataclass
class Marks:
    """The marks of the newest windows, and what a rank that is behind must be told."""

    steps: int = 0
    """Optimizer steps that were begun, as the host counts them."""
    newest: deque[Mark] = field(default_factory=lambda: deque(maxlen=KEPT))
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """Of the newest steps, by number."""
    carried: Turn | None = None
    """A window whose first learners have made their steps already, to be gone on with."""

    again: bool = False
    """Whether the window at hand is run again."""
    failures: Counter[tuple[int, str]] = field(default_factory=Counter)
    """How often an update has failed with an error that is not about memory."""

    def begin(self, run: Run) -> None:
        """Stand before a window."""
        progress, interval = run.progress, run.interval
        carried = len(self.carried.outcomes) if self.carried is not None else 0
        mark = Mark(
            self.steps - carried,
            progress.step + progress.skipped,
            progress.epoch,
            progress.window,
            interval.samples,
            interval.units,
        )
        while self.newest and self.newest[-1].steps >= mark.steps:
            self.newest.pop()
        self.newest.append(mark)

    def go_on(self, turn: Turn) -> None:
        """Take over what was committed of this window before it was begun again."""
        if self.carried is not None:
            turn.outcomes, turn.sums, turn.streams = self.carried.outcomes, self.carried.sums, self.carried.streams
            self.carried = None

    def stepped(self, outcome: Outcome) -> None:
        """Count a step."""
        self.outcomes[self.steps] = outcome
        self.steps += 1
        self.outcomes.pop(self.steps - 1 - 4 * KEPT, None)

    def at(self, steps: int) -> Mark | None:
        """The newest mark that so many steps have not left behind."""
        return next((mark for mark in reversed(self.newest) if mark.steps <= steps), None)
