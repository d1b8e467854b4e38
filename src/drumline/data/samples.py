"""Batches of one row several times over, by which the cost of a sample is told from what a batch costs anyway."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import IterableDataset
from torch.utils.data._utils import worker as torch_worker

from drumline.data.loader import LoaderOptions, Reader, read_rows
from drumline.data.sharing import tensors, unshared
from drumline.data.source import Source
from drumline.errors import DataError

MOST_ROWS = 8
"""Rows among which the largest is looked for."""
READING_S = 0.5
"""After this the rows read so far must do."""
LIMIT_S = 10.0
"""A data set that is slower with its first row is given up."""


def like_samples(source: Source, sizes: Sequence[int]) -> list[Any]:
    """A batch of each size, all of the largest of a few rows from all over the data.

    They are read in a process that ends with it, as `probe` does and for its reasons. Raises what reading and collating
    raise, and DataError for data without a row.
    """
    options = LoaderOptions(num_workers=1, prefetch_factor=1, persistent_workers=False)
    reader = Reader(_Samples(source, sizes), source, options, batch_size=None, timeout=LIMIT_S)
    try:
        batches: list[Any] | None = next((unshared(item) for item in reader.items()), None)
    finally:
        reader.close()
    if batches is None:
        raise DataError("the training set is empty", "check data.train, or its filter")
    return batches


class _Samples(IterableDataset[Any]):
    """One value: the batches."""

    def __init__(self, source: Source, sizes: Sequence[int]) -> None:
        self._source = source
        self._sizes = sizes

    def __iter__(self) -> Iterator[list[Any]]:
        torch_worker._worker_info = None  # else torch's collate would take shared memory for what is only measured
        largest, most, collate = None, -1, self._source.collate
        for row in self._rows():
            size = sum(tensor.nbytes for tensor in tensors(collate([row])))
            if size > most:
                largest, most = row, size
        if most >= 0:
            yield [collate([largest] * size) for size in self._sizes]

    def _rows(self) -> Iterator[Any]:
        began, rows, total = time.monotonic(), self._source.rows, self._source.num_rows
        if total is None:
            assert isinstance(rows, IterableDataset)
            found: Iterator[Any] = iter(rows)
        else:
            places = [number * total // MOST_ROWS for number in range(min(MOST_ROWS, total))]
            found = (row for place in dict.fromkeys(places) for row in read_rows(rows, [place]))
        for _, row in zip(range(MOST_ROWS), found, strict=False):
            yield row
            if time.monotonic() - began > READING_S:
                return
