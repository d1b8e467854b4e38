"""What rows and micro-batches take, found out before any loader process depends on it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import IterableDataset
from torch.utils.data._utils import worker as torch_worker

from drumline.data.loader import LoaderOptions, Reader, read_rows
from drumline.data.sharing import shared_size
from drumline.data.source import Source

logger = logging.getLogger("drumline")

READING_S = 1.0
"""After this the rows read so far must do: sizes are then scaled up to the whole micro-batch."""
LIMIT_S = 10.0
"""After this a data set is too slow in giving its first row, and nothing is found out."""
ALIKE = 256
"""So many rows of one size, and the others are taken to be of that size too."""


class Probed(NamedTuple):
    """Of one micro-batch."""

    num_bytes: int
    """Shared memory, in whole pages."""
    num_tensors: int


def probe(source: Source, num_rows: int) -> Probed | None:
    """Read and collate one micro-batch of at most `num_rows` rows; None where that fails or there is no row.

    In a process that ends with it, never in this one: a data set that opens its file with the first row would have it
    open here, and all loader processes, forked from here, would move one file position. An error of the data set's own
    is not reported here: it comes again where the row is read for training, with its place.
    """
    options = LoaderOptions(num_workers=1, prefetch_factor=1, persistent_workers=False)
    reader = Reader(_Probe(source, num_rows), source, options, batch_size=None, timeout=LIMIT_S)
    try:
        return next(reader.items(), None)
    except Exception as error:
        logger.info("the size of a batch is not known before training: %s", error)
        return None
    finally:
        reader.close()


class _Probe(IterableDataset[Any]):
    """One value: what a micro-batch takes."""

    def __init__(self, source: Source, num_rows: int) -> None:
        self._source = source
        self._num_rows = num_rows

    def __iter__(self) -> Iterator[Probed]:
        torch_worker._worker_info = None  # else torch's collate would take the shared memory that is asked about
        began, rows, scale = time.monotonic(), [], 1.0
        for row in self._rows():
            rows.append(row)
            if len(rows) == self._num_rows:
                break
            if time.monotonic() - began > READING_S:
                scale = self._num_rows / len(rows)
                break
        if rows:
            num_bytes, num_tensors = shared_size(self._source.collate(rows))
            yield Probed(int(num_bytes * scale), num_tensors)

    def _rows(self) -> Iterator[Any]:
        """Of a map-style data set from all over it: the first ones may all be short."""
        total, rows = self._source.num_rows, self._source.rows
        if total is None:
            assert isinstance(rows, IterableDataset)
            yield from rows
            return
        self._num_rows = min(self._num_rows, total)
        for number in range(self._num_rows):
            yield from read_rows(rows, [number * total // self._num_rows])


class LargestRow:
    """The largest row that was found. No tuple: torch would turn arrays in it into tensors on the way."""

    def __init__(self, row: Any, num_bytes: int, num_read: int) -> None:
        self.row = row
        self.num_bytes = num_bytes
        self.num_read = num_read


def largest_row(source: Source, *, apart: bool) -> LargestRow | None:
    """The largest of the rows that can be read in READING_S, taken from all over the data; None where there is none.

    A data set that has `lengths`, a number for each row, says by them which one it is. apart: in a process that ends
    with it, as `probe` does; then an error of the data set's own comes to None as well, and is met again in training.
    """
    if not apart and not source.is_stream:
        return _largest(source)
    options = LoaderOptions(num_workers=1, prefetch_factor=1, persistent_workers=False)
    reader = Reader(_Largest(source), source, options, batch_size=None, timeout=LIMIT_S)
    try:
        return next(reader.items(), None)
    except Exception as error:
        logger.info("the largest row is not known before training: %s", error)
        return None
    finally:
        reader.close()


class _Largest(IterableDataset[Any]):
    """One value: the largest row."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __iter__(self) -> Iterator[LargestRow]:
        torch_worker._worker_info = None  # else a stream would give this process its part of the rows only
        found = _largest(self._source)
        if found is not None:
            yield found


def _largest(source: Source) -> LargestRow | None:
    began, largest, smallest, num_read = time.monotonic(), None, math.inf, 0
    for row in _rows_of(source):
        num_read += 1
        num_bytes = bytes_of(row)
        smallest = min(smallest, num_bytes)
        if largest is None or num_bytes > largest.num_bytes:
            largest = LargestRow(row, num_bytes, num_read)
        alike = num_read >= ALIKE and smallest == largest.num_bytes
        if alike or time.monotonic() - began > READING_S:
            break
    if largest is not None:
        largest.num_read = num_read
    return largest


def _rows_of(source: Source) -> Iterator[Any]:
    """Rows in an order that is all over the data wherever it ends; only the longest where lengths are known."""
    rows, total = source.rows, source.num_rows
    if total is None:
        assert isinstance(rows, IterableDataset)
        yield from rows
        return
    lengths = getattr(rows, "lengths", None)
    if lengths is not None and len(lengths) == total and total:
        yield from read_rows(rows, [max(range(total), key=lengths.__getitem__)])
        return
    # Steps of the golden ratio of a range never come close to each other.
    step = max(1, round(total * (math.sqrt(5) - 1) / 2))
    while math.gcd(step, total) > 1:
        step += 1
    for number in range(total):
        yield from read_rows(rows, [number * step % total])


def bytes_of(row: Any) -> int:
    """About what a row takes: its tensors, arrays and texts, and eight bytes for whatever else is in it."""
    if isinstance(row, Tensor):
        return row.nbytes
    if isinstance(row, Mapping):
        return sum(map(bytes_of, row.values()))
    if isinstance(row, list | tuple):
        return sum(map(bytes_of, row))
    if isinstance(row, str | bytes):
        return len(row)
    width, height = getattr(row, "width", None), getattr(row, "height", None)
    if isinstance(width, int) and isinstance(height, int):  # an image of PIL's
        return width * height
    size = getattr(row, "nbytes", 8)
    return size if isinstance(size, int) else 8
