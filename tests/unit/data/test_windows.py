from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from drumline.data.loader import LoaderOptions, RowLoader
from drumline.data.order import Cut, epoch_order
from drumline.data.source import as_source
from drumline.data.windows import RowFeed, Window
from drumline.parallel.strategy import MicroBatch
from tests.unit.data.counting import CountUnits, Rows, row_ids, trained


def feed_of(rows: Rows, cut: Cut, *, shuffle: bool = False, needs_count: bool = True) -> RowFeed:
    loader = RowLoader(as_source(rows), CountUnits(), LoaderOptions())
    return RowFeed(loader, cut, 7, shuffle=shuffle, needs_count=needs_count)


@pytest.fixture(autouse=True)
def own_streams() -> object:
    """Reading seeds the process's streams."""
    with torch.random.fork_rng():
        yield


def test_windows_follow_the_order_of_the_epoch() -> None:
    feed = feed_of(Rows([1] * 7), Cut(3, 2, 0, 1), shuffle=True)
    for epoch in (0, 1):
        order = epoch_order(7, 7, epoch, shuffle=True).tolist()
        windows = list(feed.epoch(epoch, 0))
        assert [row_ids(w) for w in windows] == [
            [order[0:2], order[2:3]],
            [order[3:5], order[5:6]],
            [order[6:7]],
        ]
        assert [(w.epoch, w.index, w.rows, w.units, w.samples) for w in windows] == [
            (epoch, 0, 3, 3, 3),
            (epoch, 1, 3, 3, 3),
            (epoch, 2, 1, 1, 1),
        ]


def test_a_resumed_epoch_is_the_tail_and_reads_nothing_before_it() -> None:
    rows = Rows([1] * 10)
    whole = [row_ids(w) for w in feed_of(rows, Cut(3, 1, 0, 2), shuffle=True).epoch(2, 0)]
    order = epoch_order(10, 7, 2, shuffle=True).tolist()
    rows.read.clear()
    tail = list(feed_of(rows, Cut(3, 1, 0, 2), shuffle=True).epoch(2, 2))
    assert [row_ids(w) for w in tail] == whole[2:]
    assert [w.index for w in tail] == [2, 3]
    assert set(rows.read) <= set(order[6:])
    assert list(feed_of(rows, Cut(3, 1, 0, 2)).epoch(2, 4)) == []


def test_micro_batches_that_count_nothing_are_left_out() -> None:
    (window,) = feed_of(Rows([2, 0, 3, 0]), Cut(4, 1, 0, 1)).epoch(0, 0)
    assert row_ids(window) == [[0], [2]]
    assert (window.units, window.samples, window.rows) == (5, 2, 4)


def test_a_sum_over_nothing_is_kept() -> None:
    (window,) = feed_of(Rows([2, 0]), Cut(2, 1, 0, 1), needs_count=False).epoch(0, 0)
    assert row_ids(window) == [[0], [1]]
    assert (window.units, window.samples) == (2, 2)


def test_a_shard_that_counts_nothing_takes_part_on_a_row_of_another_that_does() -> None:
    units = [0, 0, 0, 4]
    second, first = (next(feed_of(Rows(units), Cut(4, 2, shard, 2)).epoch(0, 0)) for shard in (1, 0))
    assert row_ids(second) == [[2, 3]]
    assert row_ids(first) == [[3]]
    assert [m.weight for m in first.micro_batches] == [0]
    assert (first.units, first.samples, first.rows) == (0, 0, 2)


def test_a_stand_in_that_counts_nothing_is_replaced() -> None:
    """Shard 3 has no rows; shard 0's, which it would take part on, count nothing."""
    window = next(feed_of(Rows([0, 0, 5]), Cut(3, 1, 3, 4)).epoch(0, 0))
    assert row_ids(window) == [[2]]
    assert (window.micro_batches[0].weight, window.rows) == (0, 0)


def test_a_shard_without_rows_takes_part_without_weight() -> None:
    window = next(feed_of(Rows([1, 1]), Cut(2, 1, 2, 3), needs_count=False).epoch(0, 0))
    assert row_ids(window) == [[0]]
    assert (window.units, window.samples, window.rows) == (0, 0, 0)


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_a_window_that_counts_nothing_anywhere_is_void_for_every_shard(shard: int) -> None:
    void, real = feed_of(Rows([0, 0, 1, 1]), Cut(2, 1, shard, 3)).epoch(0, 0)
    assert void.micro_batches == ()
    assert void.units == 0
    assert len(real.micro_batches) == 1


def test_the_shards_of_an_epoch_are_the_whole_with_tokens_as_without() -> None:
    units = [row % 3 for row in range(21)]
    windows = [w for shard in range(3) for w in feed_of(Rows(units), Cut(4, 1, shard, 3), shuffle=True).epoch(0, 0)]
    assert sorted(trained(windows)) == [row for row in range(21) if units[row]]
    assert sum(w.units for w in windows) == sum(units)
    assert sum(w.rows for w in windows) == 21


def test_epochs_shards_and_micro_batches_draw_differently() -> None:
    drawn = []
    for shard in (0, 1):
        feed = feed_of(Rows([1] * 8), Cut(4, 1, shard, 2))
        for epoch in (0, 1):
            drawn += [float(m.batch["noise"]) for w in feed.epoch(epoch, 0) for m in w.micro_batches]
    assert len(set(drawn)) == len(drawn) == 16


def test_an_evaluation_has_all_rows_in_order_whatever_they_count() -> None:
    feed = feed_of(Rows([0, 1, 0, 2, 0]), Cut(1, 2, 0, 1), shuffle=True)
    for _ in range(2):
        assert [m.batch["row"].tolist() for m in feed.evaluation()] == [[0, 1], [2, 3], [4]]


def test_the_wait_for_the_loader_is_counted() -> None:
    feed = feed_of(Rows([1] * 4), Cut(2, 2, 0, 1))
    before = feed.waited_s
    list(feed.epoch(0, 0))
    assert 0 == before < feed.waited_s < 1


def test_units_and_samples_of_a_window_leave_out_what_has_no_weight() -> None:
    window = Window(0, 0, (MicroBatch(None, 3, 2), MicroBatch(None, 5, 4, 0)), 2)
    assert (window.units, window.samples) == (3, 2)


class Weighted(Rows):
    """Says itself what an epoch is: its last row twice, its first one not at all."""

    rows_per_epoch = 4

    def epoch_order(self, seed: int, epoch: int, *, shuffle: bool) -> np.ndarray[Any, Any]:
        return np.array([3, 3, 1, 2] if epoch % 2 else [2, 1, 3, 3])


def test_a_data_set_may_say_itself_what_an_epoch_is() -> None:
    feed = feed_of(Weighted([1] * 4), Cut(3, 3, 0, 1))
    assert [row_ids(w) for w in feed.epoch(0, 0)] == [[[2, 1, 3]], [[3]]]
    assert [row_ids(w) for w in feed.epoch(1, 0)] == [[[3, 3, 1]], [[2]]]
    assert [row_ids(w) for w in feed.epoch(1, 1)] == [[[2]]]
    assert [m.batch["row"].tolist() for m in feed.evaluation()] == [[0, 1, 2], [3]]
