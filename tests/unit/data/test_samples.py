from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from drumline.data.samples import MOST_ROWS, like_samples
from drumline.data.source import as_source
from drumline.errors import DataError


class Rows(Dataset[dict[str, Any]]):
    """Row i has i + 1 numbers, the middle one of all twice as many as there are rows."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, row: int) -> dict[str, Any]:
        length = 2 * self.size if row == self.size // 2 else row + 1
        return {"x": torch.full((length,), row), "process": os.getpid()}


class Stream(IterableDataset[Tensor]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[Tensor]:
        for row in range(self.size):
            yield torch.full((row + 1,), row)


def test_batches_of_the_largest_row_from_all_over_the_data() -> None:
    few, more = like_samples(as_source(Rows(80)), (2, 4))
    assert few["x"].shape == (2, 160)
    assert more["x"].shape == (4, 160)
    assert (more["x"] == 40).all()
    assert not few["x"].is_shared()


def test_rows_are_read_in_another_process() -> None:
    (batch,) = like_samples(as_source(Rows(3)), (1,))
    assert batch["process"].tolist() != [os.getpid()]


def test_a_stream_gives_its_first_rows() -> None:
    (batch,) = like_samples(as_source(Stream(100)), (3,))
    assert batch.shape == (3, MOST_ROWS)
    (batch,) = like_samples(as_source(Stream(2)), (3,))
    assert batch.shape == (3, 2)


@pytest.mark.parametrize("data", [Rows(0), Stream(0)])
def test_data_without_a_row_has_no_sample(data: Any) -> None:
    with pytest.raises(DataError, match="the training set is empty"):
        like_samples(as_source(data), (2,))


def test_what_a_data_set_raises_comes_through() -> None:
    class Broken(Rows):
        def __getitem__(self, row: int) -> dict[str, Any]:
            raise OSError("disk on fire")

    with pytest.raises(OSError, match="disk on fire"):
        like_samples(as_source(Broken(3)), (2,))
