from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, get_worker_info

from drumline.data.loader import Counted, LoaderOptions, Piece, RowLoader, start_method
from drumline.data.seeds import ROWS
from drumline.data.sharing import tensors
from drumline.data.source import as_source
from drumline.errors import DataError, DrumlineError, ValueRangeError
from drumline.hardware.host import num_open_files
from drumline.parallel.strategy import Batch, Loss, MicroBatch

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on one core


class CountAll:
    """A task that counts every row and refuses negative ones."""

    def count(self, batch: Batch) -> int:
        return len(batch["row"])

    def check(self, batch: Batch) -> None:
        if (batch["row"] < 0).any():
            raise ValueRangeError("a row is negative", "take another")

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        raise AssertionError("loaders do not run the model")

    def loss(self, outputs: Any, batch: Batch) -> Loss:
        raise AssertionError("loaders do not run the model")


class Noisy(Dataset[dict[str, Any]]):
    """Rows with what all three random streams give, and the process that read them."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, row: int) -> dict[str, Any]:
        noise = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return {"row": row, "noise": torch.tensor(noise, dtype=torch.float64), "pid": os.getpid()}


class Failing(Noisy):
    def __getitem__(self, row: int) -> dict[str, Any]:
        if row == 3:
            raise DataError("row 3 cannot be read", "leave it out")
        return super().__getitem__(row)


class AllAtOnce(Noisy):
    def __getitems__(self, rows: list[int]) -> list[dict[str, Any]]:
        return [{"row": row, "together": len(rows)} for row in rows]


@contextmanager
def loader_of(data: Any, **options: Any) -> Iterator[RowLoader]:
    loader = RowLoader(as_source(data), CountAll(), LoaderOptions(**options))
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield loader
    finally:
        loader.close()
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def pieces(*batches: list[int], shard: int = 0, epoch: int = 0) -> list[Piece]:
    return [Piece((ROWS, 0, shard, epoch, number), rows) for number, rows in enumerate(batches)]


def rows_of(micro_batches: list[MicroBatch]) -> list[list[int]]:
    return [m.batch["row"].tolist() for m in micro_batches]


def noise_of(micro_batches: list[MicroBatch]) -> Tensor:
    return torch.cat([m.batch["noise"] for m in micro_batches])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_come_counted_in_the_given_order(num_workers: int) -> None:
    batches = ([5, 0], [3], [1, 2, 4], [6])
    with loader_of(Noisy(7), num_workers=num_workers) as loader:
        found = list(loader.read(pieces(*batches)))
    assert rows_of(found) == list(batches)
    assert [(m.units, m.samples, m.weight) for m in found] == [(2, 2, 1), (1, 1, 1), (3, 3, 1), (1, 1, 1)]


@pytest.mark.parametrize("persistent", [True, False])
def test_loader_processes_over_two_epochs(persistent: bool) -> None:
    mine = psutil.Process()
    before = set(mine.children())
    with loader_of(Noisy(6), num_workers=2, persistent_workers=persistent) as loader:
        first = list(loader.read(pieces([0, 1], [2, 3], [4, 5])))
        second = list(loader.read(pieces([5, 4], [3, 2], [1, 0], epoch=1)))
        assert rows_of(first) == [[0, 1], [2, 3], [4, 5]]
        assert rows_of(second) == [[5, 4], [3, 2], [1, 0]]
        read_by = [{int(pid) for m in epoch for pid in m.batch["pid"]} for epoch in (first, second)]
        assert all(len(pids) == 2 and os.getpid() not in pids for pids in read_by)
        assert (read_by[0] == read_by[1]) == persistent
        assert len(set(mine.children()) - before) == (2 if persistent else 0)
    assert set(mine.children()) == before


@pytest.mark.parametrize("persistent", [True, False])
def test_a_pass_that_is_left_ends_at_close_and_can_be_followed_by_another(persistent: bool) -> None:
    mine = psutil.Process()
    before = set(mine.children())
    with loader_of(Noisy(40), num_workers=2, persistent_workers=persistent) as loader:
        left = loader.read(pieces(*([row] for row in range(40))))
        assert next(left).batch["row"].tolist() == [0]
        if persistent:
            assert rows_of(list(loader.read(pieces([7], [8])))) == [[7], [8]]
        assert len(set(mine.children()) - before) == 2
        loader.close()
        assert set(mine.children()) == before
        assert rows_of(list(loader.read(pieces([9], [1])))) == [[9], [1]]


def test_what_is_drawn_depends_on_the_piece_alone() -> None:
    given = pieces([0, 1], [2, 3], [4, 5], [0, 1])
    with loader_of(Noisy(6)) as loader:
        plain = noise_of(list(loader.read(given)))
        again = noise_of(list(loader.read(given[2:])))
        other_shard = noise_of(list(loader.read(pieces([0, 1], shard=1))))
        other_epoch = noise_of(list(loader.read(pieces([0, 1], epoch=1))))
    with loader_of(Noisy(6), num_workers=2) as loader:
        in_processes = noise_of(list(loader.read(given)))
        second_pass = noise_of(list(loader.read(given)))
    assert torch.equal(in_processes, plain)
    assert torch.equal(second_pass, plain)
    assert torch.equal(again, plain[4:])
    drawn = torch.cat([plain, other_shard, other_epoch])
    for stream in drawn.T:
        assert len(stream.unique()) == len(drawn)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("data", [Failing(4), Subset(Failing(5), [0, 3])])
def test_a_drumline_error_of_the_data_set_keeps_its_code(num_workers: int, data: Any) -> None:
    with (
        loader_of(data, num_workers=num_workers) as loader,
        pytest.raises(DataError, match="row 3 cannot be read") as caught,
    ):
        list(loader.read(pieces([0], [len(data) - 1])))
    assert caught.value.fix == "leave it out"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_any_other_error_of_the_data_set_keeps_its_type(num_workers: int) -> None:
    class Named(Noisy):
        def __getitem__(self, row: int) -> dict[str, Any]:
            return {"row": {"first": 1}[str(row)]}

    with loader_of(Named(4), num_workers=num_workers) as loader, pytest.raises(KeyError):
        list(loader.read(pieces([3])))


def test_a_refused_batch_is_handed_over_as_a_value() -> None:
    def fail(rows: list[Any]) -> Any:
        raise DataError("cannot be collated", "pad it")

    assert isinstance(Counted(fail, CountAll())([1]), DataError)
    refused = Counted(lambda rows: {"row": torch.tensor(rows)}, CountAll())([-1])
    assert isinstance(refused, ValueRangeError)
    error = DrumlineError("first", "fix")
    assert Counted(fail, CountAll())(error) is error


def test_a_refused_batch_ends_the_pass_with_its_code() -> None:
    class Negative(Noisy):
        def __getitem__(self, row: int) -> dict[str, Any]:
            return {"row": -row}

    with loader_of(Negative(3), num_workers=2) as loader:
        read = loader.read(pieces([0], [1], [2]))
        assert next(read).units == 1
        with pytest.raises(ValueRangeError, match="negative"):
            next(read)
    with loader_of(Negative(3)) as loader, pytest.raises(ValueRangeError):
        loader.read_one(Piece((ROWS, 0), [1]))


def test_a_data_set_that_reads_many_rows_at_once_is_asked_for_a_whole_piece() -> None:
    with loader_of(AllAtOnce(5)) as loader:
        (batch,) = loader.read(pieces([4, 2, 0]))
        assert loader.read_one(Piece((ROWS, 0), [1])).batch["together"].tolist() == [1]
    assert batch.batch["row"].tolist() == [4, 2, 0]
    assert batch.batch["together"].tolist() == [3, 3, 3]


def test_the_users_worker_init_finds_the_users_data_set() -> None:
    class Opened(Noisy):
        number = -1

        def __getitem__(self, row: int) -> dict[str, Any]:
            return {"row": row, "number": self.number}

    def open_it(worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        assert (info.id, info.num_workers) == (worker, 2)
        info.dataset.number = worker  # type: ignore[attr-defined]

    loader = RowLoader(
        as_source(DataLoader(Opened(4), num_workers=2, worker_init_fn=open_it)),
        CountAll(),
        LoaderOptions(num_workers=2),
    )
    try:
        numbers = [m.batch["number"].tolist() for m in loader.read(pieces([0], [1], [2], [3]))]
    finally:
        loader.close()
    assert numbers == [[0], [1], [0], [1]]


def test_no_pieces_no_batches() -> None:
    with loader_of(Noisy(0), num_workers=2) as loader:
        assert list(loader.read([])) == []


class Counting(Noisy):
    """Notes, for all processes, how many rows were read."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.num_read = torch.zeros(size, dtype=torch.int64).share_memory_()

    def __getitem__(self, row: int) -> dict[str, Any]:
        self.num_read[row] += 1
        return super().__getitem__(row)


@pytest.mark.parametrize(("num_workers", "prefetch_factor"), [(1, 1), (1, 3), (2, 2)])
def test_so_many_batches_are_kept_ready(num_workers: int, prefetch_factor: int) -> None:
    data = Counting(20)
    with loader_of(data, num_workers=num_workers, prefetch_factor=prefetch_factor) as loader:
        read = loader.read(pieces(*([row] for row in range(20))))
        next(read)
        wanted = num_workers * prefetch_factor + 1  # the one that is handed over makes room for another
        limit = time.monotonic() + 20
        while data.num_read.sum() < wanted and time.monotonic() < limit:
            time.sleep(0.01)
        time.sleep(0.1)
        assert int(data.num_read.sum()) == wanted


@pytest.mark.parametrize("sharing", ["file_descriptor", "file_system"])
def test_batches_that_are_kept_hold_neither_file_handles_nor_shared_memory(sharing: str) -> None:
    with loader_of(Noisy(64), num_workers=2, prefetch_factor=2, sharing=sharing) as loader:
        read = loader.read(pieces(*([row] for row in range(64))))
        kept = [next(read)]
        before = num_open_files()
        kept += read
        assert num_open_files() <= before + 2 * 2 * 3  # what is on its way
        assert rows_of(kept) == [[row] for row in range(64)]
        assert not any(tensor.is_shared() for each in kept for tensor in tensors(each.batch))


def test_a_data_set_of_the_users_own_error_names_the_row_and_keeps_the_traceback() -> None:
    class Torn(Noisy):
        def __getitem__(self, row: int) -> dict[str, Any]:
            if row == 5:
                raise ValueError("torn")
            return super().__getitem__(row)

    with loader_of(Torn(8), num_workers=1) as loader, pytest.raises(ValueError) as caught:
        list(loader.read(pieces([1, 2], [4, 5])))
    assert "raised while reading row 5 of the data set" in str(caught.value)
    assert 'raise ValueError("torn")' in str(caught.value)
    with loader_of(Torn(8)) as loader, pytest.raises(ValueError, match="torn") as caught:
        list(loader.read(pieces([1, 2], [4, 5])))
    assert caught.value.__notes__ == ["raised while reading row 5 of the data set"]


def test_a_data_set_that_reads_many_rows_at_once_names_them_all() -> None:
    class Torn(Noisy):
        def __getitems__(self, rows: list[int]) -> list[Any]:
            raise ValueError("torn")

    with loader_of(Torn(20)) as loader, pytest.raises(ValueError) as caught:
        list(loader.read(pieces(list(range(10)))))
    assert caught.value.__notes__ == ["raised while reading rows 0, 1, 2, 3, 4, 5, 6, 7, ... of the data set"]


def test_a_batch_that_cannot_be_sent_is_an_error_and_no_silence() -> None:
    """Python's queue drops what does not pickle, and torch's loader waits for it for ever."""
    loader = RowLoader(as_source(Noisy(4), lambda rows: lambda: rows), CountEvery(), LoaderOptions(num_workers=1))
    try:
        with pytest.raises(AttributeError, match="while sending a batch"):
            next(loader.read(pieces([0], [1])))
    finally:
        loader.close()


class CountEvery(CountAll):
    """Counts batches that nobody can look into."""

    def count(self, batch: Batch) -> int:
        return 1

    def check(self, batch: Batch) -> None:
        pass


def test_what_a_row_draws_does_not_depend_on_loader_processes() -> None:
    given = [pieces([0, 1], [2], [3, 4, 5], epoch=epoch) for epoch in (0, 1)]
    found = []
    for num_workers in (0, 1, 3):
        with loader_of(Noisy(6), num_workers=num_workers) as loader:
            found.append(torch.cat([noise_of(list(loader.read(each))) for each in given]))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    for stream in found[0].T:
        assert len(stream.unique()) == 12


def test_page_locking_is_asked_of_torch() -> None:
    for pin_memory in (True, False):
        with loader_of(Noisy(2), pin_memory=pin_memory) as loader:
            assert loader._reader._loader.pin_memory == pin_memory


def test_loader_processes_are_forked_whatever_pythons_default() -> None:
    """Python 3.14's is not: unguarded scripts and data sets that do not pickle would stop working."""
    assert start_method(as_source(Noisy(2))) == "fork"
    with loader_of(Noisy(2), num_workers=1) as loader:
        assert type(loader._reader._loader.multiprocessing_context).__name__ == "ForkContext"
