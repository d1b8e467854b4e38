from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from drumline.data.source import as_source
from drumline.data.stream import StridedStream
from drumline.errors import ConfigError

ROWS = TensorDataset(torch.arange(6.0))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class OwnSampler(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([5, 0])

    def __len__(self) -> int:
        return 2


class OwnBatches(BatchSampler):
    pass


class NoLength(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


def own_collate(rows: list[Any]) -> Any:
    return rows


def own_init(worker: int) -> None:
    """A worker_init_fn."""


@pytest.mark.parametrize(("data", "num_rows"), [(ROWS, 6), ([1, 2, 3], 3), (torch.zeros(4, 2), 4), ([], 0)])
def test_a_data_set_says_nothing_but_its_rows(data: Any, num_rows: int) -> None:
    source = as_source(data)
    assert source.rows is data
    assert source.collate is default_collate
    assert (source.batch_size, source.num_workers, source.shuffle, source.worker_init) == (None, None, None, None)
    assert source.num_rows == num_rows
    assert source.can_be_cut


def test_a_stream_has_no_length() -> None:
    source = as_source(Stream())
    assert source.is_stream
    assert source.num_rows is None
    assert not source.can_be_cut
    assert as_source(StridedStream(Stream())).can_be_cut


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_loader_is_kept_but_for_its_sampler(shuffle: bool) -> None:
    loader = DataLoader(ROWS, 4, shuffle=shuffle, num_workers=2, collate_fn=own_collate, worker_init_fn=own_init)
    source = as_source(loader)
    assert source.rows is ROWS
    assert (source.collate, source.worker_init) == (own_collate, own_init)
    assert (source.batch_size, source.num_workers, source.shuffle) == (4, 2, shuffle)


def test_a_loader_without_workers_says_nothing_about_them() -> None:
    assert as_source(DataLoader(ROWS, 4)).num_workers is None


def test_a_stream_in_a_loader_has_no_order() -> None:
    source = as_source(DataLoader(Stream(), 2))
    assert source.is_stream
    assert (source.batch_size, source.shuffle) == (2, None)


def test_an_explicit_collate_goes_before_the_loaders() -> None:
    assert as_source(DataLoader(ROWS, 4), own_collate).collate is own_collate
    assert as_source(ROWS, own_collate).collate is own_collate


@pytest.mark.parametrize(
    ("loader", "named"),
    [
        (lambda: DataLoader(ROWS, 2, sampler=OwnSampler()), "OwnSampler"),
        (lambda: DataLoader(ROWS, 2, sampler=RandomSampler(ROWS, replacement=True)), "RandomSampler with replacement"),
        (lambda: DataLoader(ROWS, 2, sampler=RandomSampler(ROWS, num_samples=3)), "RandomSampler"),
        (lambda: DataLoader(ROWS, 2, sampler=SequentialSampler(range(3))), "SequentialSampler"),
        (lambda: DataLoader(ROWS, batch_sampler=OwnBatches(SequentialSampler(ROWS), 2, False)), "OwnBatches"),
        (lambda: DataLoader(ROWS, batch_size=None), "batch_size=None"),
        (lambda: DataLoader(Stream(), batch_size=None), "batch_size=None"),
    ],
)
def test_a_loader_whose_batches_are_somebodys_own_is_refused(loader: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        as_source(loader())
    assert "data set" in caught.value.fix


def test_a_plain_batch_sampler_is_a_batch_size() -> None:
    source = as_source(DataLoader(ROWS, batch_sampler=BatchSampler(RandomSampler(ROWS), 2, False)))
    assert (source.batch_size, source.shuffle) == (2, True)
    with pytest.raises(ConfigError, match="OwnSampler"):
        as_source(DataLoader(ROWS, batch_sampler=BatchSampler(OwnSampler(), 2, False)))


@pytest.mark.parametrize("data", [iter([1]), 3, NoLength(), None])
def test_what_cannot_be_indexed_and_counted_is_refused(data: Any) -> None:
    with pytest.raises(ConfigError, match=type(data).__name__):
        as_source(data)


def test_drop_last_is_said_to_have_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "drumline"):
        as_source(DataLoader(ROWS, 4))
        assert not caplog.records
        as_source(DataLoader(ROWS, 4, drop_last=True))
    assert "drop_last" in caplog.text
