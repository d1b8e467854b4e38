"""A look through the rows before training, in bounded time and memory; what it finds never repeats a text."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.data.duplicates import Hashes, normalised
from drumline.data.scripts import script_of
from drumline.errors import DataError

MOST_ROWS = 1_000_000
"""Rows of a split that are looked at: 32 bytes each are held."""
LIMIT_S = 10.0
"""Seconds that a split is looked through; what was not reached by then is not looked at."""
MOST_MEASURED = 10_000
"""Rows whose tokens are counted where no cache knows them: 95% of that many tell a quantile to half a percent."""
MEASURING_S = 5.0
BLOCK = 64
"""Rows next to each other that are looked at one after the other, as disks like it."""
_NO_TEXT = frozenset({"role", "from", "type", "name", "id", "tool_call_id"})
"""Values of a message that are not its words."""


@dataclass(frozen=True)
class Content:
    """What matters of a row."""

    text: str | None
    """All its texts; None for rows that are not of texts."""
    labels: tuple[str, ...] = ()


Read = Callable[[Mapping[str, Any]], Content]
Measure = Callable[[Mapping[str, Any]], tuple[int, ...]]
"""The tokens of each of a row's texts, before any is cut. Raises DataError for a row that cannot be read."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of texts."""

    total: int
    """Tokens that are left when texts are cut."""
    shortest: int
    median: int
    longest_95: int
    """95% of the texts have at most so many."""
    longest: int
    context: int | None
    """None: texts follow each other in rows, and none is cut."""
    num_cut: int = 0
    """Texts that are longer than the context."""
    num_lost: int = 0
    """Tokens that they lose."""
    learned: float | None = None
    """Share of the tokens that is learned; None: not counted."""
    num_texts: int = 0
    """Texts that were counted."""
    before_cut: bool = True
    """Whether lengths are those of the texts before they are cut."""


@dataclass
class Survey:
    """What was seen of one split."""

    num_rows: int
    num_seen: int = 0
    num_empty: int = 0
    first_empty: int | None = None
    scripts: Counter[str] = field(default_factory=Counter)
    """Rows by the script of most of their letters."""
    labels: Counter[str] = field(default_factory=Counter)
    """Rows by label; a row with several counts for each."""
    num_unreadable: int = 0
    """Rows that the task cannot read."""
    first_unreadable: tuple[int, str] | None = None
    """Row and problem."""
    exact: Hashes = field(default_factory=Hashes)
    loose: Hashes = field(default_factory=Hashes)
    """Of normalised texts."""
    label_hashes: Hashes = field(default_factory=Hashes)
    lengths: Lengths | None = None

    @property
    def whole(self) -> bool:
        """Whether every row was looked at."""
        return self.num_seen == self.num_rows


def look_through(
    rows: Any, read: Read, *, limit_s: float = LIMIT_S, clock: Callable[[], float] = time.monotonic
) -> Survey:
    """Look at the rows of a map-style data set: all, or as many as MOST_ROWS and the time allow, from all over it."""
    found, began = Survey(len(rows)), clock()
    for row in places(len(rows), MOST_ROWS):
        _see(found, row, read(rows[row]))
        if clock() - began > limit_s:
            break
    return found


def measure(
    rows: Any, lengths_of: Measure, found: Survey, context: int, clock: Callable[[], float] = time.monotonic
) -> Lengths | None:
    """Count tokens of at most MOST_MEASURED rows; those that the task cannot read are noted in `found`."""
    lengths: list[int] = []
    began = clock()
    for row in places(len(rows), MOST_MEASURED):
        try:
            lengths += lengths_of(rows[row])
        except DataError as error:
            found.num_unreadable += 1
            if found.first_unreadable is None or row < found.first_unreadable[0]:
                found.first_unreadable = row, error.problem
        if clock() - began > MEASURING_S:
            break
    return lengths_in(np.array(lengths, dtype=np.int64), context)


def lengths_in(lengths: NDArray[np.int64], context: int) -> Lengths | None:
    """Pure: the summary of texts' lengths, int64 [texts], before they are cut; None where there are none."""
    if not len(lengths):
        return None
    shortest, median, longest_95, longest = np.quantile(lengths, [0, 0.5, 0.95, 1], method="inverted_cdf").tolist()
    over = np.maximum(lengths - context, 0)
    return Lengths(
        total=int(lengths.sum() - over.sum()),
        shortest=int(shortest),
        median=int(median),
        longest_95=int(longest_95),
        longest=int(longest),
        context=context,
        num_cut=int((over > 0).sum()),
        num_lost=int(over.sum()),
        num_texts=len(lengths),
    )


def places(num_rows: int, most: int) -> Iterator[int]:
    """Pure: rows in blocks, in an order that is spread over all of them wherever it ends; all where they are few."""
    num_blocks = -(-num_rows // BLOCK)
    # Steps of the golden ratio of a range never come close to each other.
    step = max(1, round(num_blocks * (math.sqrt(5) - 1) / 2))
    while math.gcd(step, num_blocks) > 1:
        step += 1
    left = min(most, num_rows)
    for number in range(num_blocks):
        first = number * step % num_blocks * BLOCK
        for row in range(first, min(first + BLOCK, num_rows)):
            if not left:
                return
            left -= 1
            yield row


def text_in(values: Mapping[str, Any], columns: tuple[str, ...]) -> str:
    """All texts and numbers in some columns of a row, one a line; of messages their words alone."""
    return "\n".join(part for name in columns for part in _parts(values.get(name)))


def _parts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if name not in _NO_TEXT:
                yield from _parts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _parts(inner)
    elif value is not None:
        yield str(value)


def _see(found: Survey, row: int, content: Content) -> None:
    found.num_seen += 1
    found.labels.update(content.labels)
    if content.text is None:
        return
    loose = normalised(content.text)
    if not loose:
        found.num_empty += 1
        found.first_empty = row if found.first_empty is None else min(row, found.first_empty)
        return
    found.scripts[script_of(content.text)] += 1
    found.exact.add(row, content.text)
    found.loose.add(row, loose)
    found.label_hashes.add(row, "\0".join(sorted(content.labels)))
