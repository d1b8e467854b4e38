"""Records as tensors."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from drumline.data.features import (
    ColumnFeatures,
    ImageFeatures,
    NumberFeatures,
    PairFeatures,
    Prepared,
    PreparedStream,
    SourceTargetFeatures,
    TextFeatures,
    WordFeatures,
)
from drumline.data.images import Pixels, PixelSettings
from drumline.data.labels import Classes, as_numbers
from drumline.data.tokenizers import ByteTokenizer
from drumline.errors import DataError

BYTES = ByteTokenizer()
CLASSES = Classes(["a", "b"])


def listed(row: dict[str, Tensor]) -> dict[str, Any]:
    return {name: value.tolist() for name, value in row.items()}


def test_a_text_and_its_class() -> None:
    features = TextFeatures(BYTES, 3, CLASSES.one)
    assert listed(features({"text": "AB", "label": "b"})) == {
        "input_ids": [65, 66],
        "attention_mask": [1, 1],
        "labels": 1,
    }
    assert listed(features({"text": "ABCD", "label": "a"}))["input_ids"] == [65, 66, 67]
    assert listed(features({"text": 12, "label": "a"}))["input_ids"] == [49, 50]


def test_an_empty_text_keeps_one_id_that_can_be_attended_to() -> None:
    row = TextFeatures(BYTES, 3, None, type_ids=True)({"text": ""})
    assert listed(row) == {"input_ids": [256], "attention_mask": [1], "token_type_ids": [0]}


def test_two_texts() -> None:
    features = TextFeatures(BYTES, 5, as_numbers, pair=True, type_ids=True)
    row = listed(features({"text": "AB", "text_pair": "CDEF", "label": 1.5}))
    assert row == {
        "input_ids": [65, 66, 256, 67, 68],
        "attention_mask": [1] * 5,
        "token_type_ids": [0, 0, 0, 1, 1],
        "labels": 1.5,
    }


@pytest.mark.parametrize(("record", "what"), [({}, "text is missing"), ({"text": ["x"]}, "text is a list, not text")])
def test_what_is_no_text_is_refused(record: dict[str, Any], what: str) -> None:
    with pytest.raises(DataError, match=rf"{what}\n  fix: .*data\.columns\.text"):
        TextFeatures(BYTES, 5, None)(record)


def test_a_tag_stands_at_a_words_first_id() -> None:
    features = WordFeatures(BYTES, 7, CLASSES)
    row = listed(features({"tokens": ["AB", "C", "DEFG"], "tags": ["b", "a", "b"]}))
    assert row["input_ids"] == [65, 66, 32, 67, 32, 68, 69]
    assert row["labels"] == [1, -100, -100, 0, -100, 1, -100]
    with pytest.raises(DataError, match="2 tokens have 1 tags"):
        features({"tokens": ["a", "b"], "tags": ["a"]})


def test_source_and_target_and_pairs() -> None:
    row = listed(SourceTargetFeatures(BYTES, 2)({"source": "ABC", "target": "D"}))
    assert row == {"input_ids": [65, 66], "attention_mask": [1, 1], "labels": [68]}
    pair = PairFeatures(BYTES, 2)({"anchor": "A", "positive": "BC"})
    assert listed(pair["anchor"]) == {"input_ids": [65], "attention_mask": [1]}
    assert listed(pair["positive"]) == {"input_ids": [66, 67], "attention_mask": [1, 1]}


def test_an_image_and_its_class() -> None:
    image = Image.new("L", (4, 4), 255)
    row = ImageFeatures(Pixels(PixelSettings(2, 1)), CLASSES.one)({"image": image, "label": "b"})
    assert row["pixel_values"].tolist() == [[[1.0, 1.0], [1.0, 1.0]]]
    assert int(row["labels"]) == 1
    assert set(ImageFeatures(Pixels(PixelSettings(2, 1)), None)({"image": image})) == {"pixel_values"}


def test_columns_as_they_are() -> None:
    row = ColumnFeatures()({"n": 3, "x": 0.5, "yes": True, "v": [1, 2.5], "words": ["a"], "name": "z"})
    assert [row[name].dtype for name in ("n", "x", "yes", "v")] == [
        torch.int64,
        torch.float32,
        torch.bool,
        torch.float32,
    ]
    assert (row["v"].tolist(), row["words"], row["name"]) == ([1.0, 2.5], ["a"], "z")


def test_numbers_as_one_vector() -> None:
    features = NumberFeatures(["x", "v"], CLASSES.one)
    assert listed(features({"x": 1, "v": [2, 3], "label": "a"})) == {"numbers": [1.0, 2.0, 3.0], "labels": 0}
    with pytest.raises(DataError, match=r"column x: \(a text of 4 characters\) is no number"):
        features({"x": "high", "v": [2], "label": "a"})


class Weighted:
    """Three records with an order of their own."""

    rows_per_epoch = 2

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"text": "AB"[: index + 1], "label": "x" if index == 2 else "a"}

    def epoch_order(self, seed: int, epoch: int, *, shuffle: bool) -> Any:
        return np.array([seed, epoch, int(shuffle)])


def test_a_prepared_data_set_reads_rows_and_names_the_bad_one() -> None:
    rows = Prepared(Weighted(), TextFeatures(BYTES, 5, CLASSES.one), "data.train")
    assert len(rows) == 3
    assert listed(rows[0])["input_ids"] == [65]
    assert [listed(row)["input_ids"] for row in rows.__getitems__([1, 0])] == [[65, 66], [65]]
    with pytest.raises(DataError, match=r"data\.train, row 2: the label 'x' is none of"):
        rows.__getitems__([0, 2])
    assert listed(pickle.loads(pickle.dumps(rows))[1])["labels"] == 0


def test_the_order_of_an_epoch_is_the_records_own_or_the_usual_one() -> None:
    features = ColumnFeatures()
    own = Prepared(Weighted(), features, "data.train")
    assert own.rows_per_epoch == 2
    assert own.epoch_order(7, 8, shuffle=True).tolist() == [7, 8, 1]
    usual = Prepared([{"x": 1}, {"x": 2}, {"x": 3}], features, "data.train")
    assert usual.rows_per_epoch == 3
    assert usual.epoch_order(0, 0, shuffle=False).tolist() == [0, 1, 2]
    assert sorted(usual.epoch_order(0, 1, shuffle=True).tolist()) == [0, 1, 2]


class Numbers:
    """A stream of four records that can be cut."""

    def __init__(self, numbers: list[Any]) -> None:
        self.numbers = numbers
        self.epoch = 0

    def shard(self, num_shards: int, index: int) -> Numbers:
        return Numbers(self.numbers[index::num_shards])

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from ({"x": number} for number in self.numbers)


def test_a_stream_is_cut_and_told_of_epochs_as_its_records_are() -> None:
    records = Numbers([1, 2, 3, 4])
    stream = PreparedStream(records, ColumnFeatures(), "data.train")
    stream.set_epoch(3)
    assert records.epoch == 3
    assert [int(row["x"]) for row in stream] == [1, 2, 3, 4]
    assert [int(row["x"]) for row in stream.shard(2, 1)] == [2, 4]
    bad = PreparedStream(Numbers([1, [None]]), ColumnFeatures(), "data.train")
    with pytest.raises(DataError, match=r"data\.train, row 1 of this part: \(a list of 1\) is no number"):
        list(bad)
