from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from drumline.data import probe as probe_module
from drumline.data.probe import Probed, probe
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
