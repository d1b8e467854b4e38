"""What one micro-batch takes of shared memory, found out before any loader process depends on it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

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
