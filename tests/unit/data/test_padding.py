"""Rows of different lengths as one batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from drumline.data.padding import Pad


def row(length: int, label: int = 0) -> dict[str, Tensor]:
    ids = torch.arange(1, length + 1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor(label)}


def test_rows_are_filled_up_to_the_longest() -> None:
    batch = Pad({"input_ids": 9, "attention_mask": 0})([row(2, 5), row(3, 6)])
    assert batch["input_ids"].tolist() == [[1, 2, 9], [1, 2, 3]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["labels"].tolist() == [5, 6]
    assert {value.dtype for value in batch.values()} == {torch.int64}


@pytest.mark.parametrize(("longest", "width"), [(None, 16), (20, 16), (12, 12), (9, 9)])
def test_to_a_multiple_of_eight_but_not_beyond_the_context(longest: int | None, width: int) -> None:
    batch = Pad({"input_ids": 0, "attention_mask": 0}, 8, longest)([row(9), row(1)])
    assert batch["input_ids"].shape == (2, width)


def test_each_name_has_its_own_length_and_filling() -> None:
    rows = [{"input_ids": torch.tensor([1, 2, 3]), "labels": torch.tensor([4])}] * 2
    rows[1] = {"input_ids": torch.tensor([1]), "labels": torch.tensor([5, 6])}
    batch = Pad({"input_ids": 0, "labels": -100})(rows)
    assert batch["input_ids"].tolist() == [[1, 2, 3], [1, 0, 0]]
    assert batch["labels"].tolist() == [[4, -100], [5, 6]]


def test_mappings_inside_rows_and_what_is_no_tensor() -> None:
    pad = Pad({"input_ids": 0, "attention_mask": 0})
    batch = pad([{"anchor": row(1), "name": "a"}, {"anchor": row(2), "name": "b"}])
    assert batch["anchor"]["input_ids"].tolist() == [[1, 0], [1, 2]]
    assert batch["name"] == ["a", "b"]
