"""The thread that plans: it brings the next window's rows into the model's form while batches of the last are run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from drumline.infer.ledger import Ledger
from drumline.infer.planning import plan_window
from drumline.infer.records import Window
from drumline.infer.rows_in_form import RowsInForm

FEW = 32
"""Planned batches that are not done: with fewer, the next window is planned. Enough for a machine's workers, each with
a batch in work and one or two in hand."""

SHORTEST_S, LONGEST_S = 0.01, 0.5
"""Pauses while others are at it, one of which may die and leave it."""


@dataclass(frozen=True)
class Plan:
    """How rows become batches."""

    tokens: int
    """Of a batch at most, padding and new ones counted."""
    max_rows: int
    window: int
    """Rows that are planned together."""


class News:
    """Tells threads that something has changed; `ends` tells them for good."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.count = 0
        """How often it was told."""
        self.ends = False

    def tell(self, *, ends: bool = False) -> None:
        """Wake all who wait."""
        with self._condition:
            self.count += 1
            self.ends |= ends
            self._condition.notify_all()

    def wait(self, seen: int, pause_s: float) -> None:
        """Until it was told more often than `seen` times, and no longer than a pause."""
        with self._condition:
            self._condition.wait_for(lambda: self.ends or self.count != seen, pause_s)


class Planner:
    """Plans windows until all rows are planned, by whomever."""

    def __init__(self, ledger: Ledger, rows: RowsInForm, plan: Plan, news: News, stop: Callable[[], bool]) -> None:
        """news: told when a window was planned; it wakes the thread, and ends it. stop: asked from the thread."""
        self._ledger = ledger
        self._rows = rows
        self._plan = plan
        self._news = news
        self._stop = stop
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="drumline-planner", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what failed in the thread."""
        if self._error is not None:
            raise self._error

    def join(self) -> None:
        """Wait for its end, after the news have told of it."""
        self._thread.join()

    def _main(self) -> None:
        try:
            self._plan_all()
        except BaseException as error:
            self._error = error
        finally:
            self._news.tell()

    def _plan_all(self) -> None:
        pause_s = SHORTEST_S
        while not (self._news.ends or self._stop() or self._ledger.is_planned):
            seen = self._news.count
            if self._ledger.num_open >= FEW:
                self._news.wait(seen, LONGEST_S)
            elif self._ledger.plan_next(self._make_window):
                self._news.tell()
                pause_s = SHORTEST_S
            else:
                self._news.wait(seen, pause_s)
                pause_s = min(LONGEST_S, pause_s * 2)

    def _make_window(self, first_row: int, first_batch: int, number: int) -> Window:
        num_rows = min(self._plan.window, self._ledger.num_rows - first_row)
        prepared = self._rows.window(first_row, num_rows)
        return plan_window(number, first_row, first_batch, prepared, self._plan.tokens, self._plan.max_rows)
