from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from drumline.data.loader import LoaderOptions
from drumline.data.order import Cut
from drumline.data.source import as_source
from drumline.data.stream import StreamFeed, StridedStream, micro_sizes
from drumline.data.windows import Window
from drumline.errors import ConfigError, DataError
from drumline.parallel.strategy import Task
from tests.unit.data.counting import CountedSum, CountUnits, Numbers, noise_of, row_ids, trained

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more processes than cores, on purpose


@pytest.fixture(autouse=True)
def own_streams() -> Iterator[None]:
    """Reading seeds the process's streams."""
    with torch.random.fork_rng():
        yield


class Plain(IterableDataset[dict[str, int]]):
    """A stream that cannot be cut."""

    def __init__(self, size: int, fails_at: int | None = None) -> None:
        self._size = size
        self._fails_at = fails_at

    def __iter__(self) -> Iterator[dict[str, int]]:
        for row in range(self._size):
            if row == self._fails_at:
                raise DataError(f"row {row} is torn", "download it again")
            yield {"row": row, "units": 1}


class SharedOut(Plain):
    """Shares its rows out by loader process itself, as torch's documentation shows."""

    def __iter__(self) -> Iterator[dict[str, int]]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        return islice(super().__iter__(), worker, None, workers)


@contextmanager
def feed_of(
    rows: Any, cut: Cut, num_workers: int = 0, task: Task | None = None, *, persistent: bool = True
) -> Iterator[StreamFeed]:
    options = LoaderOptions(num_workers=num_workers, persistent_workers=persistent)
    feed = StreamFeed(as_source(rows), task or CountUnits(), options, cut, 5)
    try:
        yield feed
    finally:
        feed.close()


def until_dry(windows: Iterator[Window], more: int = 0) -> list[Window]:
    """The windows of a shard alone, up to the first without rows, and `more` after it."""
    found: list[Window] = []
    for window in windows:
        if not window.rows:
            return [*found, *islice(windows, more)]
        found.append(window)
    raise AssertionError("a stream's windows have no end")


@pytest.mark.parametrize(
    ("cut", "sizes"),
    [
        (Cut(8, 8, 0, 1), [8]),
        (Cut(8, 3, 0, 1), [3, 3, 2]),
        (Cut(8, 3, 0, 3), [3]),
        (Cut(8, 3, 2, 3), [2]),
        (Cut(5, 2, 0, 1), [2, 2, 1]),
    ],
)
def test_micro_batches_of_a_share(cut: Cut, sizes: list[int]) -> None:
    assert micro_sizes(cut) == sizes


def test_windows_of_a_stream_end_with_what_is_left() -> None:
    with feed_of(Plain(11), Cut(5, 2, 0, 1)) as feed:
        windows = until_dry(feed.epoch(0, 0))
    assert [row_ids(w) for w in windows] == [[[0, 1], [2, 3], [4]], [[5, 6], [7, 8], [9]], [[10]]]
    assert [(w.index, w.rows, w.units) for w in windows] == [(0, 5, 5), (1, 5, 5), (2, 1, 1)]


@pytest.mark.parametrize(("num_shards", "num_workers"), [(1, 0), (1, 2), (2, 0), (2, 3)])
@pytest.mark.parametrize("make", [Numbers, lambda rows: StridedStream(Plain(len(rows)))])
def test_each_row_comes_once(num_shards: int, num_workers: int, make: Callable[[range], Any]) -> None:
    rows = Counter[int]()
    for shard in range(num_shards):
        with feed_of(make(range(23)), Cut(4, 3, shard, num_shards), num_workers) as feed:
            windows = until_dry(feed.epoch(0, 0))
            rows.update(trained(windows))
            assert sum(w.rows for w in windows) == sum(len(ids) for w in windows for ids in row_ids(w))
            assert Counter(i for m in feed.evaluation() for i in m.batch["row"].tolist()) == Counter(trained(windows))
    assert rows == Counter(range(23))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_that_shares_itself_out_is_not_cut_twice(num_workers: int) -> None:
    with feed_of(StridedStream(SharedOut(10)), Cut(2, 2, 0, 1), num_workers) as feed:
        assert sorted(trained(until_dry(feed.epoch(0, 0)))) == list(range(10))


def test_full_windows_have_the_same_sizes_with_and_without_loader_processes() -> None:
    sizes = []
    for num_workers in (0, 2):
        with feed_of(Numbers(range(24)), Cut(5, 2, 0, 1), num_workers) as feed:
            sizes.append([[len(ids) for ids in row_ids(w)] for w in islice(feed.epoch(0, 0), 3)])
    assert sizes[0] == sizes[1] == [[2, 2, 1]] * 3


def test_the_epoch_is_told_to_the_stream_whatever_it_is_wrapped_in() -> None:
    for rows in (Numbers(range(4)), StridedStream(Numbers(range(4)))):
        with feed_of(rows, Cut(4, 4, 0, 1), num_workers=2) as feed:
            for epoch in (0, 3):
                (window,) = until_dry(feed.epoch(epoch, 0))[:1]
                assert set(window.micro_batches[0].batch["epoch"].tolist()) == {epoch}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_going_on_from_window_k_gives_the_tail_and_draws_the_same(num_workers: int) -> None:
    with feed_of(Numbers(range(14)), Cut(4, 2, 0, 1), num_workers) as feed:
        whole = until_dry(feed.epoch(1, 0))
        torch.rand(3)
        tail = until_dry(feed.epoch(1, 2))
        other = until_dry(feed.epoch(2, 0))
    assert [w.index for w in tail] == [w.index for w in whole][2:]
    assert [row_ids(w) for w in tail] == [row_ids(w) for w in whole][2:]
    assert torch.equal(noise_of(tail), noise_of(whole[2:]))
    drawn = torch.cat([noise_of(whole), noise_of(other)])
    for stream in drawn.T:
        assert len(stream.unique()) == len(drawn)


class Skipping(Numbers):
    """Numbers that can be skipped, and that note how many were read, in whatever process."""

    def __init__(self, rows: range, units: Callable[[int], int] = lambda row: 1) -> None:
        super().__init__(rows, units)
        self.num_read = torch.zeros((), dtype=torch.int64).share_memory_()

    def _part(self, rows: Any) -> Skipping:
        part = Skipping(rows, self._units)
        part.epoch, part.num_read = self.epoch, self.num_read
        return part

    def shard(self, num_shards: int, index: int) -> Skipping:
        return self._part(super().shard(num_shards, index)._rows)

    def skip(self, count: int) -> Skipping:
        return self._part(self._rows[count:])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in super().__iter__():
            self.num_read += 1
            yield row


def units_of(row: int) -> int:
    """Rows 8 to 13 count nothing."""
    return int(not 8 <= row < 14)


@pytest.mark.parametrize("num_workers", [0, 2, 3])
@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("make", [Numbers, Skipping, lambda rows, units: StridedStream(Skipping(rows, units))])
def test_going_on_from_each_window_is_as_if_nothing_had_been(
    make: Callable[[range, Callable[[int], int]], Any], num_shards: int, num_workers: int
) -> None:
    """To the end, also where a loader process or the whole shard has run dry, and where what is left counts nothing."""
    for shard in range(num_shards):
        with feed_of(make(range(17), units_of), Cut(5, 2, shard, num_shards), num_workers) as feed:
            whole = list(islice(feed.epoch(1, 0), 9))
            assert not whole[-1].rows
            for start in range(1, 9):
                tail = list(islice(feed.epoch(1, start), 9 - start))
                assert [(w.index, w.rows, w.units) for w in tail] == [(w.index, w.rows, w.units) for w in whole[start:]]
                kept = [[w for w in windows if w.units] for windows in (whole[start:], tail)]
                assert [row_ids(w) for w in kept[1]] == [row_ids(w) for w in kept[0]]
                if kept[0]:
                    assert torch.equal(noise_of(kept[1]), noise_of(kept[0]))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("is_strided", [False, True])
def test_what_can_be_skipped_is_not_read_again(num_workers: int, is_strided: bool) -> None:
    rows = Skipping(range(4000))
    with feed_of(StridedStream(rows) if is_strided else rows, Cut(4, 2, 0, 1), num_workers, persistent=False) as feed:
        assert trained([next(feed.epoch(0, 900))])
        num_read = int(rows.num_read)
        feed.close()
    # Loader processes go on reading ahead until they are ended.
    assert num_read < 400 if num_workers else num_read == 4


def test_a_stream_that_cannot_skip_says_what_is_read_again(caplog: pytest.LogCaptureFixture) -> None:
    with feed_of(Numbers(range(12)), Cut(4, 2, 0, 1)) as feed:
        assert trained([next(feed.epoch(2, 0))]) == [0, 1, 2, 3] and not caplog.records
        assert trained([next(feed.epoch(2, 2))]) == [8, 9, 10, 11]
    (record,) = caplog.records
    assert "Numbers has no skip(count): 2 updates of epoch 2 are read again" in record.getMessage()


@pytest.mark.parametrize("is_strided", [False, True])
def test_a_skip_that_moves_the_stream_itself_is_refused(is_strided: bool) -> None:
    class Moved(Numbers):
        def skip(self, count: int) -> None:
            self._rows = self._rows[count:]

    rows = Moved(range(12))
    with (
        feed_of(StridedStream(rows) if is_strided else rows, Cut(4, 2, 0, 1)) as feed,
        pytest.raises(ConfigError, match="of the stream Moved gave nothing") as caught,
    ):
        next(feed.epoch(0, 1))
    assert "return the stream" in caught.value.fix


def test_an_error_on_the_way_to_the_place_is_the_streams_own() -> None:
    with (
        feed_of(Plain(12, fails_at=3), Cut(2, 2, 0, 1)) as feed,
        pytest.raises(DataError, match="row 3 is torn"),
    ):
        next(feed.epoch(0, 4))


def test_a_dry_shard_takes_part_without_weight_for_as_long_as_asked() -> None:
    with feed_of(Plain(3), Cut(2, 2, 0, 1)) as feed:
        windows = until_dry(feed.epoch(0, 0), more=3)
    assert [w.rows for w in windows] == [2, 1, 0, 0, 0]
    assert all([m.weight for m in w.micro_batches] == [0] for w in windows[2:])
    assert all(w.units == w.samples == 0 for w in windows[2:])


@pytest.mark.parametrize(("task", "num_workers"), [(CountUnits(), 0), (CountUnits(), 2), (CountedSum(), 0)])
def test_a_shard_without_any_row_is_refused(task: Task, num_workers: int) -> None:
    with (
        feed_of(Numbers(range(1)), Cut(4, 2, 1, 2), num_workers, task) as feed,
        pytest.raises(DataError, match="shard 1 of 2"),
    ):
        next(feed.epoch(0, 0))


def test_a_stream_that_cannot_start_again_is_refused_in_its_second_epoch() -> None:
    class Once(IterableDataset[dict[str, int]]):
        def __init__(self) -> None:
            self._rows = iter([{"row": 0, "units": 1}])

        def __iter__(self) -> Iterator[dict[str, int]]:
            return self._rows

    with feed_of(Once(), Cut(1, 1, 0, 1)) as feed:
        assert trained(until_dry(feed.epoch(0, 0))) == [0]
        with pytest.raises(DataError, match="in epoch 1") as caught:
            next(feed.epoch(1, 0))
    assert "start again" in caught.value.fix


def test_a_stream_that_counts_nothing_at_first_takes_part_on_what_comes_later() -> None:
    rows = Numbers(range(6), lambda row: row // 4)
    with feed_of(rows, Cut(2, 1, 0, 1)) as feed:
        windows = until_dry(feed.epoch(0, 0))
    assert [row_ids(w) for w in windows] == [[[4]], [[4]], [[4], [5]]]
    assert [w.units for w in windows] == [0, 0, 2]
    assert [w.rows for w in windows] == [2, 2, 2]
    with feed_of(rows, Cut(2, 1, 0, 1), task=CountedSum()) as feed:
        assert trained(until_dry(feed.epoch(0, 0))) == list(range(6))


def test_a_stream_that_never_counts_is_refused() -> None:
    with feed_of(Numbers(range(6), lambda row: 0), Cut(2, 1, 0, 1)) as feed, pytest.raises(DataError, match="nothing"):
        next(feed.epoch(0, 0))


@pytest.mark.parametrize(("num_shards", "num_workers"), [(2, 0), (1, 2)])
def test_a_stream_that_cannot_be_cut_is_refused_with_advice(num_shards: int, num_workers: int) -> None:
    with pytest.raises(ConfigError, match="cannot be cut into 2 parts") as caught:
        StreamFeed(as_source(Plain(3)), CountUnits(), LoaderOptions(num_workers), Cut(2, 2, 0, num_shards))
    assert "StridedStream" in caught.value.fix


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_drumline_error_of_the_stream_keeps_its_code(num_workers: int) -> None:
    with (
        feed_of(StridedStream(Plain(9, fails_at=5)), Cut(2, 2, 0, 1), num_workers) as feed,
        pytest.raises(DataError, match="row 5 is torn"),
    ):
        until_dry(feed.epoch(0, 0))


def test_loader_processes_end_at_close_in_the_middle_of_an_epoch() -> None:
    mine = psutil.Process()
    before = set(mine.children())
    with feed_of(Numbers(range(40)), Cut(2, 2, 0, 1), num_workers=2) as feed:
        windows = feed.epoch(0, 0)
        next(windows)
        assert len(set(mine.children()) - before) == 2
    assert set(mine.children()) == before


def test_strided_shards_of_shards_are_the_whole() -> None:
    stream = StridedStream(range(20))
    parts = [list(stream.shard(2, i).shard(3, j)) for i in range(2) for j in range(3)]
    assert sorted(row for part in parts for row in part) == list(range(20))
    assert parts[0] == [0, 6, 12, 18]
    assert list(stream) == list(range(20))


def test_an_update_smaller_than_the_number_of_processes_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be divided into 3 shards"):
        StreamFeed(as_source(Numbers(range(9))), CountUnits(), LoaderOptions(), Cut(2, 2, 0, 3))


@pytest.mark.parametrize("persistent", [True, False])
def test_loader_processes_live_on_from_epoch_to_epoch_if_asked(persistent: bool) -> None:
    """Epoch, rows and draws are those of fresh processes."""
    mine = psutil.Process()
    before = set(mine.children())
    found, alive = [], []
    with feed_of(Numbers(range(14)), Cut(4, 2, 0, 1), 3, persistent=persistent) as feed:
        for epoch in (0, 1, 2):
            windows = until_dry(feed.epoch(epoch, 0))
            assert sorted(trained(windows)) == list(range(14))
            assert {e for w in windows for m in w.micro_batches for e in m.batch["epoch"].tolist()} == {epoch}
            found.append(noise_of(windows))
            alive.append({child.pid for child in set(mine.children()) - before})
    assert [len(pids) for pids in alive] == ([3, 3, 3] if persistent else [0, 0, 0])
    assert alive[0] == alive[1] == alive[2]
    for stream in torch.cat(found).T:
        assert len(stream.unique()) == 3 * 14
    with feed_of(Numbers(range(14)), Cut(4, 2, 0, 1), 3, persistent=not persistent) as feed:
        again = [noise_of(until_dry(feed.epoch(epoch, 0))) for epoch in (0, 1, 2)]
    assert all(torch.equal(first, second) for first, second in zip(found, again, strict=True))


def test_an_epoch_that_is_left_does_not_reach_into_the_next() -> None:
    with feed_of(Numbers(range(40)), Cut(4, 2, 0, 1), 2) as feed:
        left = feed.epoch(0, 0)
        next(left)
        windows = until_dry(feed.epoch(1, 0))
    assert sorted(trained(windows)) == list(range(40))
    assert {e for w in windows for m in w.micro_batches for e in m.batch["epoch"].tolist()} == {1}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_evaluations_draw_the_same_each_time_and_not_what_training_draws(num_workers: int) -> None:
    with feed_of(Numbers(range(9)), Cut(4, 2, 0, 1), num_workers) as feed:
        first, second = (torch.cat([m.batch["noise"] for m in feed.evaluation()]) for _ in range(2))
        training = noise_of(until_dry(feed.epoch(0, 0)))
    assert torch.equal(first, second)
    assert not set(first.flatten().tolist()) & set(training.flatten().tolist())


class Uneven(Numbers):
    """A stream whose first part is much the longest."""

    def shard(self, num_shards: int, index: int) -> Uneven:
        rest = len(self._rows) // (2 * num_shards)
        first = len(self._rows) - rest * (num_shards - 1)
        start = 0 if index == 0 else first + rest * (index - 1)
        return Uneven(self._rows[start : first if index == 0 else start + rest])


@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize("micro_batch", [1, 2, 3, 5])
def test_windows_never_have_more_rows_than_their_share(num_workers: int, micro_batch: int) -> None:
    """Also after some loader processes have run dry, when the others' micro-batches come in another order."""
    with feed_of(Uneven(range(37)), Cut(5, micro_batch, 0, 1), num_workers) as feed:
        windows = until_dry(feed.epoch(0, 0))
    assert sorted(trained(windows)) == list(range(37))
    assert max(w.rows for w in windows) == 5
    assert [w.rows for w in windows[:3]] == [5, 5, 5]
