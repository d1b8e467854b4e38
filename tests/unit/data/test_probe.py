from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from drumline.data import probe as probe_module
from drumline.data.probe import ALIKE, Probed, bytes_of, largest_row, probe
from drumline.data.source import as_source


class Rows(Dataset[dict[str, Any]]):
    """Row i has i + 1 pages."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"x": torch.zeros(4096 * (row + 1), dtype=torch.uint8), "row": row}


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        yield from torch.zeros(5, 4096, dtype=torch.uint8)


def separate(rows: list[Any]) -> list[Any]:
    """A collate function that keeps rows apart, as those for detection do."""
    return [row["x"] for row in rows]


def test_rows_from_all_over_a_data_set_are_measured() -> None:
    assert probe(as_source(Rows(8), separate), 4) == Probed(4096 * (1 + 3 + 5 + 7), 4)
    assert probe(as_source(Rows(2), separate), 4) == Probed(4096 * 3, 2)
    assert probe(as_source(Rows(1)), 4) == Probed(4096 * 2, 2)


def test_a_stream_is_measured_by_its_first_rows() -> None:
    assert probe(as_source(Stream()), 2) == Probed(4096 * 2, 1)
    assert probe(as_source(Stream()), 100) == Probed(4096 * 5, 1)


def test_this_process_reads_nothing_and_draws_nothing(tmp_path: Path) -> None:
    class Opened(Rows):
        file: Any = None

        def __getitem__(self, row: int) -> dict[str, Any]:
            assert self.file is not None
            self.file.write(f"{os.getpid()}\n")
            self.file.flush()
            return {"x": torch.rand(1)}

    def open_it(worker: int) -> None:
        data.file = (tmp_path / "read").open("a")

    data = Opened(3)
    before = torch.get_rng_state()
    assert probe(as_source(DataLoader(data, 2, worker_init_fn=open_it)), 2) == Probed(4096, 1)
    assert torch.equal(torch.get_rng_state(), before)
    assert data.file is None
    readers = set((tmp_path / "read").read_text().split())
    assert len(readers) == 1 and str(os.getpid()) not in readers


def test_slow_rows_are_scaled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Rows):
        def __getitem__(self, row: int) -> dict[str, Any]:
            time.sleep(0.03)
            return {"x": torch.zeros(4096)}

    monkeypatch.setattr(probe_module, "READING_S", 0.05)
    began = time.monotonic()
    found = probe(as_source(Slow(1000)), 1000)
    assert found is not None
    assert found.num_tensors == 1
    assert found.num_bytes == pytest.approx(1000 * 4 * 4096, rel=1e-3)
    assert time.monotonic() - began < 10


def test_a_data_set_that_fails_or_never_gives_a_row_leaves_the_size_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Rows):
        def __getitem__(self, row: int) -> dict[str, Any]:
            raise ValueError("torn")

    class Stuck(Rows):
        def __getitem__(self, row: int) -> dict[str, Any]:
            time.sleep(0.2)
            return super().__getitem__(row)

    assert probe(as_source(Failing(3)), 2) is None
    assert probe(as_source(Rows(0)), 2) is None
    monkeypatch.setattr(probe_module, "LIMIT_S", 0.05)
    assert probe(as_source(Stuck(3)), 2) is None


class Lengths(Dataset[list[int]]):
    """Rows of these lengths; what is read is noted."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.taken: list[int] = []

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, row: int) -> list[int]:
        self.taken.append(row)
        return [7] * self.sizes[row]


class WithLengths(Lengths):
    @property
    def lengths(self) -> list[int]:
        return self.sizes


@pytest.mark.parametrize("apart", [True, False])
def test_the_largest_row_is_found_anywhere(apart: bool) -> None:
    for place in (0, 6, 12):
        sizes = [3] * 13
        sizes[place] = 5
        found = largest_row(as_source(Lengths(sizes)), apart=apart)
        assert found is not None and found.row == [7] * 5 and (found.num_bytes, found.num_read) == (40, 13)


def test_known_lengths_are_believed() -> None:
    rows = WithLengths([3, 1, 9, 2])
    found = largest_row(as_source(rows), apart=False)
    assert found is not None and len(found.row) == 9 and rows.taken == [2]


def test_rows_that_are_all_alike_are_not_all_read() -> None:
    rows = Lengths([3] * 10_000)
    found = largest_row(as_source(rows), apart=False)
    assert found is not None and found.num_read == ALIKE
    halves = [sum(row // 5000 == half for row in rows.taken) for half in (0, 1)]
    assert abs(halves[0] - halves[1]) <= 2, "they are from all over the data"


def test_a_slow_data_set_is_read_for_no_longer_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "READING_S", 0.0)
    rows = Lengths([3, 4, 5, 6])
    found = largest_row(as_source(rows), apart=False)
    assert found is not None and found.num_read == 1


def test_a_stream_is_read_apart_and_begins_where_it_did() -> None:
    source = as_source(Stream())
    found = largest_row(source, apart=False)
    assert found is not None and found.num_bytes == 4096 and found.num_read == 5


def test_arrays_stay_arrays_on_the_way() -> None:
    rows: Any = [{"x": np.zeros(3), "name": "a"}, {"x": np.ones(4), "name": "b"}]
    found = largest_row(as_source(rows), apart=True)
    assert found is not None and isinstance(found.row["x"], np.ndarray) and found.row["name"] == "b"


def test_no_row_and_a_row_that_cannot_be_read_are_none() -> None:
    assert largest_row(as_source(Lengths([])), apart=False) is None
    assert largest_row(as_source(Lengths([])), apart=True) is None

    class Broken(Lengths):
        def __getitem__(self, row: int) -> list[int]:
            raise ValueError("broken")

    assert largest_row(as_source(Broken([1])), apart=True) is None


@pytest.mark.parametrize(
    ("row", "num_bytes"),
    [
        (torch.zeros(3), 12),
        ({"x": torch.zeros(2), "y": [1, 2]}, 24),
        ("word", 4),
        (np.zeros(3), 24),
        (SimpleNamespace(width=4, height=3), 12),
        (object(), 8),
    ],
)
def test_what_a_row_takes(row: Any, num_bytes: int) -> None:
    assert bytes_of(row) == num_bytes
