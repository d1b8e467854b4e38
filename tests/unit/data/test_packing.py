from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from drumline.data.cache import build_cache, cache_path, open_cache
from drumline.data.packing import PackedRows
from drumline.data.tokenizers import ByteTokenizer


def every(rows: PackedRows) -> list[dict[str, Tensor]]:
    return [rows[i] for i in range(len(rows))]


def test_rows_by_hand() -> None:
    rows = PackedRows(np.array([5, 6, 7, 8, 9, 10], dtype=np.uint16), context=3)
    assert len(rows) == 2
    assert rows[0]["input_ids"].tolist() == [5, 6, 7]
    assert rows[0]["labels"].tolist() == [6, 7, 8]
    assert rows[1]["input_ids"].tolist() == [8, 9, 0]
    assert rows[1]["labels"].tolist() == [9, 10, -100]


@pytest.mark.parametrize("context", [1, 2, 3, 4, 5, 7, 19, 20, 21, 50])
@pytest.mark.parametrize("count", [2, 3, 20, 21])
def test_each_token_is_a_target_once(count: int, context: int) -> None:
    stream = np.arange(100, 100 + count, dtype=np.uint32)
    rows = every(PackedRows(stream, context))
    targets = []
    for row in rows:
        assert row["input_ids"].shape == row["labels"].shape == (context,)
        assert row["input_ids"].dtype == row["labels"].dtype == torch.int64
        real = row["labels"] != -100
        assert torch.equal(row["labels"][real], row["input_ids"][real] + 1)
        assert not row["input_ids"][~real].any()
        targets += row["labels"][real].tolist()
    assert targets == stream[1:].tolist()
    assert len(rows) == -(-(count - 1) // context)


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_to_predict_is_no_row(count: int) -> None:
    assert len(PackedRows(np.zeros(count, dtype=np.uint16), 4)) == 0


@pytest.mark.parametrize("index", [-1, 2])
def test_row_out_of_range(index: int) -> None:
    with pytest.raises(IndexError, match=f"row {index} of 2"):
        PackedRows(np.arange(6, dtype=np.uint16), 3)[index]


def test_rows_of_a_cache_survive_pickling_without_their_tokens(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("0123456789" * 1000)
    path = cache_path([tmp_path / "a.txt"], ByteTokenizer(), tmp_path)
    build_cache([tmp_path / "a.txt"], ByteTokenizer(), path)
    rows = PackedRows(open_cache(path), 128)
    first = rows[3]
    pickled = pickle.dumps(rows)
    assert len(pickled) < 2000
    again = pickle.loads(pickled)[3]
    assert torch.equal(first["input_ids"], again["input_ids"])
    assert bytes(first["input_ids"].tolist()).decode() == ("0123456789" * 1000)[384:512]


def test_rows_of_a_loader_may_be_written_to() -> None:
    rows = PackedRows(np.arange(9, dtype=np.uint16), 4)
    batch = next(iter(DataLoader(rows, batch_size=2)))
    batch["input_ids"][0, 0] = 77
    assert batch["input_ids"].tolist() == [[77, 1, 2, 3], [4, 5, 6, 7]]
    assert rows[0]["input_ids"].tolist() == [0, 1, 2, 3]
