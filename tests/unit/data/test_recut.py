"""A feed whose micro-batches become smaller gives the same windows, cut more finely."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from drumline.data.loader import LoaderOptions, RowLoader
from drumline.data.order import Cut
from drumline.data.source import as_source
from drumline.data.stream import StreamFeed
from drumline.data.windows import Feed, RowFeed, Window
from tests.unit.data.counting import CountUnits


class Rows(IterableDataset[dict[str, int]]):
    """Numbers in order, cut by every n-th row."""

    def __init__(self, size: int, step: int = 1, first: int = 0) -> None:
        self._size, self._step, self._first = size, step, first

    def shard(self, num_shards: int, index: int) -> Rows:
        return Rows(self._size, self._step * num_shards, self._first + self._step * index)

    def __iter__(self) -> Any:
        return ({"row": row, "units": 1} for row in range(self._first, self._size, self._step))


def rows_of(windows: list[Window]) -> list[list[list[int]]]:
    return [[m.batch["row"].tolist() for m in window.micro_batches if m.weight] for window in windows]


def feed_of(kind: str) -> Feed:
    cut = Cut(global_batch=8, micro_batch=4, shard=0, num_shards=1)
    if kind == "rows":
        rows = [{"row": row, "units": 1} for row in range(24)]
        loader = RowLoader(as_source(rows), CountUnits(), LoaderOptions())
        return RowFeed(loader, cut, 5, shuffle=True, needs_count=False)
    workers = 2 if kind == "stream of two processes" else 0
    return StreamFeed(as_source(Rows(24)), CountUnits(), LoaderOptions(num_workers=workers), cut, 5)


@pytest.mark.parametrize("kind", ["rows", "stream", "stream of two processes"])
def test_the_windows_stay(kind: str) -> None:
    feed = feed_of(kind)
    try:
        before = rows_of(list(islice(feed.epoch(0, 0), 3)))
        feed.recut(2)
        after = rows_of(list(islice(feed.epoch(0, 1), 2)))
        feed.recut(4)
        again = rows_of(list(islice(feed.epoch(0, 0), 3)))
    finally:
        feed.close()
    assert again == before
    assert [[len(m) for m in window] for window in after] == [[2, 2, 2, 2]] * 2
    assert [list(chain(*window)) for window in after] == [list(chain(*window)) for window in before[1:]]
