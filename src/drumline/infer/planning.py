"""Which rows go through the model together: a pure function of a window's lengths and the token budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from drumline.infer.records import Batch, Prepared, Window


@dataclass(frozen=True)
class MeasuredWindow(Window):
    """A window that knows how long its rows are."""

    lengths: tuple[tuple[int, int], ...] = ()
    """Rows by length: (the least power of two that is not below it, how many)."""


def plan_window(
    number: int, first_row: int, first_batch: int, prepared: Sequence[Prepared | str], tokens: int, max_rows: int
) -> MeasuredWindow:
    """Put rows that follow each other in the input into batches of at most `tokens` (rows times the largest size).

    prepared: one entry a row, a text where something is wrong with it. The longest rows come first; a batch has at
    most `max_rows`, and a row that is larger than the budget one of its own. Deterministic.
    """
    rows = [row for row in prepared if not isinstance(row, str)]
    rows.sort(key=lambda row: (-row.length, row.number))
    batches: list[Batch] = []
    held: list[Prepared] = []
    largest = 0
    for row in rows:
        grown = max(largest, row.size)
        if held and (len(held) == max_rows or (len(held) + 1) * grown > tokens):
            batches.append(_batch(first_batch + len(batches), held))
            held, grown = [], row.size
        held.append(row)
        largest = grown
    if held:
        batches.append(_batch(first_batch + len(batches), held))
    problems = {first_row + place: row for place, row in enumerate(prepared) if isinstance(row, str)}
    return MeasuredWindow(
        number, first_row, len(prepared), tuple(batches), problems, length_counts([row.length for row in rows])
    )


def length_counts(lengths: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """How many are at most 1, 2, 4, 8, …, each counted once, where it first fits; edges without any are left out."""
    return tuple(sorted(Counter(1 << max(0, length - 1).bit_length() for length in lengths).items()))


def _batch(number: int, rows: Sequence[Prepared]) -> Batch:
    return Batch(number, tuple(row.number for row in rows), max(row.length for row in rows))
