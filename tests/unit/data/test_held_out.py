"""Rows that are held out by their content."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Dataset

from drumline.config.data import RecordData, TextData
from drumline.data.held_out import lowest, row_hashes, split_off, with_held_out
from drumline.data.mixture import Mixture
from drumline.data.packing import PackedRows
from drumline.data.records import load_records
from drumline.data.schema import Column, Schema
from drumline.errors import ConfigError


class Rows(Dataset[dict[str, Any]]):
    """Rows of a list, with a schema."""

    def __init__(self, rows: list[dict[str, Any]], num_rows: int | None = -1) -> None:
        self.rows = rows
        self.schema = Schema({"text": Column({"text": len(rows)})}, len(rows) if num_rows == -1 else num_rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def texts(rows: Any) -> list[str]:
    """The texts of all rows."""
    return [row["text"] for row in rows.__getitems__(range(len(rows)))]


def numbered(count: int, start: int = 0) -> Rows:
    """Rows that differ."""
    return Rows([{"text": f"row {number}"} for number in range(start, start + count)])


def test_each_row_is_on_one_side_and_their_order_stays() -> None:
    train, held_out = split_off(numbered(200), 0.1)
    assert len(train) == train.schema.num_rows == 180 and held_out is not None
    assert len(held_out) == held_out.schema.num_rows == 20
    number = lambda text: int(text.split()[1])  # noqa: E731
    assert sorted([*texts(train), *texts(held_out)], key=number) == [f"row {place}" for place in range(200)]
    assert texts(train) == sorted(texts(train), key=number)


def test_equal_rows_are_on_one_side() -> None:
    twice = Rows([{"text": f"row {number % 50}"} for number in range(100)])
    train, held_out = split_off(twice, 0.1)
    assert held_out is not None and len(held_out) == 10
    assert not set(texts(train)) & set(texts(held_out))


def test_the_same_rows_are_held_out_in_another_order_and_with_more_behind_them() -> None:
    _, held_out = split_off(numbered(200), 0.1)
    _, reversed_ = split_off(Rows(numbered(200).rows[::-1]), 0.1)
    _, more = split_off(numbered(220), 0.1)
    assert held_out is not None and reversed_ is not None and more is not None
    assert set(texts(held_out)) == set(texts(reversed_))
    assert len(set(texts(held_out)) & set(texts(more))) >= 18


def test_rows_are_equal_by_the_columns_that_are_read() -> None:
    rows = Rows([{"id": number, "text": f"row {number % 50}", "label": number % 3} for number in range(100)])
    train, held_out = split_off(rows, 0.1, ["text"])
    assert held_out is not None and len(held_out) == 10
    assert not set(texts(train)) & set(texts(held_out))
    _, other = split_off(Rows([{"text": row["text"]} for row in rows.rows]), 0.1, ["text"])
    assert other is not None and texts(other) == texts(held_out)


def test_a_frequent_row_leaves_the_room_to_others() -> None:
    hashes = np.array([0, *[1] * 50, *range(2, 51)], dtype=np.uint64)
    assert np.flatnonzero(lowest(hashes, 0.05)).tolist() == [0, 51, 52, 53, 54]


def test_at_least_one_row_and_at_most_2000_are_held_out() -> None:
    assert lowest(np.arange(5, dtype=np.uint64), 0.01).sum() == 1
    assert lowest(np.arange(100_000, dtype=np.uint64), 0.1).sum() == 2000


def test_nothing_is_held_out_of_one_row_or_of_rows_that_are_all_alike(caplog: pytest.LogCaptureFixture) -> None:
    config = RecordData(train=["x.jsonl"], eval_fraction=0.5)
    with caplog.at_level(logging.WARNING, "drumline"):
        for rows in (numbered(1), Rows([{"text": "same"}] * 8)):
            assert with_held_out(config, rows, None) == (rows, None)
    assert [record.getMessage() for record in caplog.records] == [
        "data.eval_fraction: nothing is held out: 1 rows, too few of them different",
        "data.eval_fraction: nothing is held out: 8 rows, too few of them different",
    ]


def test_named_rows_and_no_share_leave_all_as_it_is() -> None:
    rows, named = numbered(20), numbered(5, start=20)
    assert with_held_out(RecordData(train=["x.jsonl"], eval_fraction=0.5), rows, named) == (rows, named)
    assert with_held_out(RecordData(train=["x.jsonl"]), rows, None) == (rows, None)


def test_parts_keep_their_weights_and_share_no_row() -> None:
    mixture = Mixture([(numbered(60), 2.0), (numbered(60, start=30), 0.5)], Schema({}, 120))
    train, held_out = split_off(mixture, 0.2)
    assert isinstance(train, Mixture) and train.weights == (2.0, 0.5)
    assert held_out is not None and held_out.weights == (1.0, 1.0)
    assert len(train) + len(held_out) == 120 and 20 <= len(held_out) <= 24
    assert not set(texts(train)) & set(texts(held_out))


def test_a_source_that_is_all_on_one_side_is_no_part_of_the_other() -> None:
    all_alike = Rows([{"text": "same"}] * 8)
    whole = Schema({}, 68, num_bad=3, bad_rows=(Path("bad.jsonl"),))
    train, held_out = split_off(Mixture([(numbered(60), 2.0), (all_alike, 0.5)], whole), 0.1)
    assert isinstance(train, Mixture) and train.weights == (2.0, 0.5)
    assert held_out is not None and not isinstance(held_out, Mixture) and len(held_out) == 7
    assert held_out.schema == Schema({}, 7) and train.schema == Schema({}, 61, 3, (Path("bad.jsonl"),))
    hashes = row_hashes(numbered(60)).tolist()
    lowest_of_all = Rows([numbered(60).rows[hashes.index(min(hashes))]])
    train, held_out = split_off(Mixture([(numbered(60), 1.0), (lowest_of_all, 1.0)], whole), 0.05)
    assert held_out is not None and len(held_out) == 3
    assert not isinstance(train, Mixture) and train.schema.num_rows == len(train) == 58


def test_what_is_held_out_of_one_source_has_no_bad_rows() -> None:
    rows = numbered(20)
    rows.schema = Schema({}, 20, num_bad=3, bad_rows=(Path("bad.jsonl"),))
    train, held_out = split_off(rows, 0.1)
    assert held_out is not None and held_out.schema == Schema({}, 2) and train.schema.num_bad == 3


def test_rows_of_files_are_told_by_their_content_whatever_the_columns_are_called(tmp_path: Path) -> None:
    lines = [json.dumps({"body": f"row {number}"}) for number in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    config = RecordData(train=[str(tmp_path / "rows.jsonl")], columns={"text": "body"}, cache_dir=tmp_path / "cache")
    rows = load_records(config, ["text"]).train
    assert len(set(row_hashes(rows).tolist())) == 40
    train, held_out = split_off(rows, 0.25)
    assert held_out is not None and len(held_out) == 10
    assert sorted([*texts(train), *texts(held_out)]) == sorted(f"row {number}" for number in range(40))
    assert texts(pickle.loads(pickle.dumps(held_out))) == texts(held_out)
    assert texts(split_off(rows, 0.25, ["text"])[1]) == texts(split_off(Rows(list(rows)), 0.25, ["text"])[1])


def test_windows_of_a_text_are_held_out_too() -> None:
    rows = PackedRows(np.arange(1001, dtype=np.int64), 10)
    train, held_out = with_held_out(TextData(train=["x.txt"], eval_fraction=0.05), rows, None)
    assert held_out is not None and (len(train), len(held_out)) == (95, 5)
    kept = {int(row["input_ids"][0]) for row in (train[index] for index in range(95))}
    assert kept.isdisjoint({int(held_out[index]["input_ids"][0]) for index in range(5)})


def test_streams_and_images_are_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="one after the other"):
        split_off(Rows([], num_rows=None), 0.1)
    with pytest.raises(ConfigError, match="values of type object"):
        split_off(Rows([{"image": object()}, {"image": object()}]), 0.1)
