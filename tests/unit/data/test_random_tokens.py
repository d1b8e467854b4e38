from __future__ import annotations

import pickle

import pytest
import torch

from drumline.data.random_tokens import RandomTokenRows


def test_shape_shift_and_range() -> None:
    data = RandomTokenRows(num_rows=50, context=16, vocab_size=7, seed=0)
    assert len(data) == 50
    rows = [data[i] for i in range(50)]
    for row in rows:
        assert row["input_ids"].shape == row["labels"].shape == (16,)
        assert row["input_ids"].dtype == row["labels"].dtype == torch.int64
        assert torch.equal(row["input_ids"][1:], row["labels"][:-1])
    assert {i for row in rows for i in row["input_ids"].tolist()} == set(range(7))


def test_row_is_a_function_of_seed_and_index() -> None:
    rows = RandomTokenRows(100, 8, 50257, seed=3)
    row = rows[41]["input_ids"]
    copy = pickle.loads(pickle.dumps(rows))
    assert torch.equal(copy[41]["input_ids"], row)
    assert torch.equal(RandomTokenRows(42, 8, 50257, seed=3)[41]["input_ids"], row)
    assert not torch.equal(RandomTokenRows(100, 8, 50257, seed=4)[41]["input_ids"], row)
    assert not torch.equal(RandomTokenRows(100, 8, 50257, seed=41)[3]["input_ids"], row)
    assert not torch.equal(rows[40]["input_ids"], row)


@pytest.mark.parametrize("index", [-1, 5])
def test_row_out_of_range(index: int) -> None:
    with pytest.raises(IndexError, match=f"row {index} of 5"):
        RandomTokenRows(5, 8, 10, 0)[index]
