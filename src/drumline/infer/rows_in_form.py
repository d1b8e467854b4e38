"""Rows as the model takes them: made for planning, and kept for a while, so that most are not made twice."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from drumline.errors import DataError
from drumline.infer.ledger import Ledger
from drumline.infer.records import Predictor, Prepared

KEPT_TOKENS = 4_000_000
"""Of rows in the model's form that are kept from planning until they are run: some 150 MB of Python's numbers."""

TOKEN_BYTES = 40
"""What a token takes of that, for rows that say how many bytes they take (`nbytes`)."""

ONE_TOKEN = 256
"""What a row of length 1 counts as beside: what a function is given may be anything."""

MADE_AGAIN = 32
"""Of a window's rows whose form was not kept: so many of the largest, and so many others, to see what rows are like."""


class RowsInForm:
    """Rows as the predictor takes them; those of the last windows planned here are kept until they are asked for.

    `window` is for one thread at a time, `of` for another at the same time.
    """

    def __init__(self, ledger: Ledger, predictor: Predictor) -> None:
        self._ledger = ledger
        self._predictor = predictor
        self._mutex = threading.Lock()
        self._kept: deque[dict[int, Prepared]] = deque()
        self._last: tuple[int, list[Prepared | str]] | None = None

    def window(self, first_row: int, num_rows: int) -> list[Prepared | str]:
        """All rows of a window, or what is wrong with them, in their order; asked for twice in a row, made once.

        Without their payload where the window is larger than what is kept.
        """
        if self._last is not None and self._last[0] == first_row:
            return self._last[1]
        # All at once, as a predictor of images only looks at files where there are many rows.
        rows = self._ledger.read(range(first_row, first_row + num_rows))
        found = iter(self._predictor.prepare([row for row in rows if row.problem is None]))
        outcome = [next(found) if row.problem is None else row.problem for row in rows]
        kept: dict[int, Prepared] = {}
        tokens = 0
        for place, row in enumerate(outcome):
            if isinstance(row, Prepared):
                tokens += room_of(row)
                if tokens <= KEPT_TOKENS:
                    kept[row.number] = row
                else:
                    outcome[place] = replace(row, payload=None)
        with self._mutex:
            self._kept.append(kept)
            while sum(room_of(row) for each in self._kept for row in each.values()) > KEPT_TOKENS:
                self._kept.popleft()  # what others have taken, most likely
        self._last = (first_row, outcome)
        return outcome

    def to_show(self, window: Sequence[Prepared | str]) -> list[Prepared]:
        """The rows of a window that the model can take; of those without payload MADE_AGAIN of the largest and as many
        others, evenly over the window, have theirs again. Raises DataError as `of` does.
        """
        rows = [row for row in window if isinstance(row, Prepared)]
        without = sorted((row for row in rows if row.payload is None), key=lambda row: (-row.size, row.number))
        others = sorted(without[MADE_AGAIN:], key=lambda row: row.number)
        chosen = [*without[:MADE_AGAIN], *others[:: max(1, -(-len(others) // MADE_AGAIN))]]
        again = self.of([row.number for row in chosen]) if chosen else {}
        return [again.get(row.number, row) for row in rows]

    def of(self, numbers: Sequence[int]) -> dict[int, Prepared]:
        """Rows of one batch. Raises DataError where one that could be prepared before cannot be now."""
        with self._mutex:
            for kept in self._kept:
                if all(number in kept for number in numbers):
                    return {number: kept.pop(number) for number in numbers}
        prepared: dict[int, Prepared] = {}
        for number, row in zip(numbers, self._predictor.prepare(self._ledger.read(numbers)), strict=True):
            if isinstance(row, str):
                raise DataError(
                    f"row {number} was planned with another model or task: now {row}",
                    "go on with the settings that the run began with, or begin another one",
                )
            prepared[number] = row
        return prepared


def room_of(row: Prepared) -> int:
    """What a row takes while it is kept, in tokens."""
    counted = max(row.length, int(getattr(row.payload, "nbytes", 0)) // TOKEN_BYTES)
    return counted if counted > 1 else ONE_TOKEN
