"""Texts in rows of one length."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from drumline.data.document_packing import PackedBatch, PackedTexts, Packs, pack, packed, starts_of
from drumline.data.mixture import Mixture
from drumline.data.token_row_cache import Encoding, TokenRows, token_rows
from drumline.data.token_rows import Row


def filled(packs: Packs, lengths: Sequence[int]) -> list[list[int]]:
    """The lengths of the texts of each row."""
    return [
        [min(lengths[text], packs.context) for text in packs.texts[start:end].tolist()]
        for start, end in itertools.pairwise(packs.starts.tolist())
    ]


def one_by_one(lengths: Sequence[int], context: int) -> list[int]:
    """Best-fit decreasing as it is written in textbooks: how many tokens each row holds, sorted."""
    rows: list[int] = []
    for length in sorted((min(length, context) for length in lengths if length > 1), reverse=True):
        fitting = [row for row in range(len(rows)) if rows[row] + length <= context]
        if fitting:
            rows[max(fitting, key=lambda row: rows[row])] += length
        else:
            rows.append(length)
    return sorted(rows)


def test_rows_by_hand() -> None:
    packs = pack([3, 7, 5, 2, 3], 10)
    assert [sorted(row) for row in filled(packs, [3, 7, 5, 2, 3])] == [[3, 7], [2, 3, 5]]
    assert packs.texts.tolist() == [1, 0, 2, 4, 3]
    assert (packs.num_tokens, packs.waste, packs.num_cut, packs.num_left_out) == (20, 0.0, 0, 0)
    assert packs.describe() == "5 texts in 2 rows of 10 tokens, 0.0% empty"


@pytest.mark.parametrize("seed", range(20))
def test_as_full_as_best_fit_decreasing_with_each_text_once(seed: int) -> None:
    generator = np.random.default_rng(seed)
    context = int(generator.integers(2, 60))
    lengths = generator.integers(0, context + 10, int(generator.integers(0, 200))).tolist()
    packs = pack(lengths, context)
    kept = [number for number, length in enumerate(lengths) if length > 1]
    assert sorted(packs.texts.tolist()) == kept
    assert sorted(sum(row) for row in filled(packs, lengths)) == one_by_one(lengths, context)
    assert packs.num_left_out == len(lengths) - len(kept)
    assert packs.num_cut == sum(length > context for length in lengths)
    assert packs.num_tokens == sum(min(length, context) for length in lengths if length > 1)


def test_short_texts_leave_hardly_a_place_empty() -> None:
    lengths = np.random.default_rng(0).lognormal(4, 0.8, 5000).astype(int)
    packs = pack(lengths, 1024)
    assert packs.waste < 0.005
    assert pack(lengths.tolist(), 1024).texts.tolist() == packs.texts.tolist()


@pytest.mark.parametrize("lengths", [[], [0, 1]])
def test_nothing_to_learn_is_no_row(lengths: list[int]) -> None:
    packs = pack(lengths, 8)
    assert len(packs) == 0
    assert packs.waste == 0.0


@pytest.fixture
def texts(tmp_path: Path) -> TokenRows:
    """Row i has the ids 10 i + 1, 10 i + 2 and so on, all learned but for each second one."""
    lengths = [3, 9, 2, 1, 4, 2]

    def encode(record: object) -> list[tuple[np.ndarray, np.ndarray]]:
        assert isinstance(record, dict)
        ids = 10 * record["number"] + 1 + np.arange(lengths[record["number"]])
        return [(ids, np.arange(len(ids)) % 2 == 0)]

    rows: TokenRows = token_rows(
        [{"number": number} for number in range(6)], Encoding(encode, [], 100, 9, tmp_path), "data.train"
    )
    return rows


def test_a_row_is_its_texts_and_a_filling_that_is_a_text_of_its_own(texts: TokenRows) -> None:
    rows = PackedTexts(texts, pack(texts.lengths, 8), fill_id=99)
    assert len(rows) == 3
    assert rows[0]["input_ids"].tolist() == [11, 12, 13, 14, 15, 16, 17, 18]
    assert rows[0]["labels"].tolist() == [-100, 13, -100, 15, -100, 17, -100, -100], "the ninth token is cut off"
    assert rows[0]["position_ids"].tolist() == list(range(8))
    assert rows[1]["input_ids"].tolist() == [41, 42, 43, 44, 1, 2, 3, 99]
    assert rows[1]["labels"].tolist() == [-100, 43, -100, -100, -100, 3, -100, -100]
    assert rows[1]["position_ids"].tolist() == [0, 1, 2, 3, 0, 1, 2, 0]
    assert rows[2]["input_ids"].tolist() == [21, 22, 51, 52, 99, 99, 99, 99]
    assert rows[2]["position_ids"].tolist() == [0, 1, 0, 1, 0, 1, 2, 3]
    with pytest.raises(IndexError, match="row 3 of 3"):
        rows[3]


def test_a_batch_says_where_each_text_begins(texts: TokenRows) -> None:
    rows = PackedTexts(texts, pack(texts.lengths, 8))
    batch = PackedBatch(1.0)([rows[1], rows[2]])
    assert {name: (tuple(value.shape), value.dtype) for name, value in batch.items()} == {
        "input_ids": ((2, 8), torch.int64),
        "labels": ((2, 8), torch.int64),
        "position_ids": ((2, 8), torch.int64),
        "cu_seqlens": ((9,), torch.int32),
    }
    assert batch["cu_seqlens"].tolist() == [0, 4, 7, 8, 10, 12, 16, 16, 16]


def test_the_shape_of_starts_depends_on_the_number_of_rows_alone(texts: TokenRows) -> None:
    def row(*lengths: int) -> Row:
        return {"position_ids": torch.cat([torch.arange(length) for length in lengths])}

    collate = PackedBatch(12.0)
    few, many = collate([row(30, 34)] * 2), collate([row(*[4] * 16)] * 2)
    assert few["cu_seqlens"].shape == many["cu_seqlens"].shape == (33,)
    most = collate([row(*[2] * 32)] * 2)["cu_seqlens"]
    assert most.tolist() == list(range(0, 129, 2))
    assert starts_of(torch.tensor([[0, 1, 0]])).tolist() == [0, 2, 3]


def test_parts_of_a_mixture_are_packed_each_by_itself(texts: TokenRows) -> None:
    rows, collate = packed(Mixture([(texts, 2.0), (texts, 1.0)]), 8, fill_id=99)
    assert len(rows) == 6
    assert rows.rows_per_epoch == 9
    assert collate([rows[0], rows[5]])["input_ids"][1].tolist() == [21, 22, 51, 52, 99, 99, 99, 99]
    alone, _ = packed(texts, 8)
    assert isinstance(alone, PackedTexts)
