"""Inputs and labels of one text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from drumline.data.token_rows import shifted_row


def test_labels_are_the_next_tokens_that_are_learned() -> None:
    row = shifted_row([5, 6, 7, 8, 9], np.array([True, False, True, True, False]))
    assert row["input_ids"].tolist() == [5, 6, 7, 8, 9]
    assert row["labels"].tolist() == [-100, 7, 8, -100, -100]
    assert row["input_ids"].dtype == row["labels"].dtype == torch.int64


@pytest.mark.parametrize("length", [0, 1])
def test_a_text_without_a_next_token_has_no_label(length: int) -> None:
    row = shifted_row(np.arange(length, dtype=np.uint16), np.ones(length, dtype=np.bool_))
    assert row["labels"].tolist() == [-100] * length


def test_ids_are_copied() -> None:
    ids = np.array([1, 2, 3], dtype=np.int64)
    row = shifted_row(ids, np.ones(3, dtype=np.bool_))
    ids[:] = 0
    assert row["input_ids"].tolist() == [1, 2, 3]


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="learned of shape"):
        shifted_row([1, 2, 3], np.ones(2, dtype=np.bool_))
