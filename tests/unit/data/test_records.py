"""From the records section of a recipe to rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drumline.config.data import RecordData, WeightedPaths
from drumline.data.mixture import Mixture
from drumline.data.records import load_records
from drumline.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, first in ("a", 0), ("b", 100), ("held_out", 1000):
        rows = [{"body": f"text {first + i}", "topic": i % 4} for i in range(20)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def data(folder: Path, *train: str | WeightedPaths, **settings: Any) -> RecordData:
    paths = [str(folder / entry) if isinstance(entry, str) else entry for entry in train]
    given = {"columns": {"text": "body", "label": "topic"}, "cache_dir": folder / "cache", **settings}
    return RecordData(train=paths, **given)


def test_rows_of_both_splits_under_the_tasks_names(folder: Path) -> None:
    splits = load_records(data(folder, "[ab].jsonl", eval=[str(folder / "held_out.jsonl")]), ["text", "label"])
    assert splits.train[21] == {"text": "text 101", "label": 1}
    assert splits.eval is not None
    assert splits.eval[0] == {"text": "text 1000", "label": 0}
    assert (splits.schema.num_rows, splits.eval.schema.num_rows) == (40, 20)
    assert splits.train.schema is splits.schema
    assert splits.schema.distinct("label") == [0, 1, 2, 3]
    assert load_records(data(folder, "a.jsonl"), ["text"]).eval is None


def test_sources_with_weights(folder: Path) -> None:
    weighted = WeightedPaths(paths=[str(folder / "b.jsonl")], weight=0.5)
    splits = load_records(data(folder, "a.jsonl", weighted), ["text", "label"])
    assert isinstance(splits.train, Mixture)
    assert (len(splits.train), splits.train.rows_per_epoch) == (40, 30)
    assert splits.train.__getitems__([39, 0]) == [{"text": "text 119", "label": 3}, {"text": "text 0", "label": 0}]
    assert splits.train.schema is splits.schema
    assert splits.schema.num_rows == 40


def test_build_is_called_once_and_decides_when(folder: Path) -> None:
    written: list[bool] = []

    def build(write: Callable[[], None]) -> None:
        assert not (folder / "cache").exists()
        write()
        written.append(True)

    load_records(data(folder, "a.jsonl", eval=[str(folder / "held_out.jsonl")]), ["text"], build)
    assert written == [True]
    with pytest.raises(DataError, match="there are no rows at"):
        load_records(data(folder, "b.jsonl"), ["text"], lambda write: None)


def test_a_file_in_both_splits_is_refused(folder: Path) -> None:
    (folder / "other.jsonl").symlink_to(folder / "b.jsonl")
    for name in ("b.jsonl", "other.jsonl"):
        with pytest.raises(DataError, match=rf"{name} is in data\.train and in data\.eval"):
            load_records(data(folder, "[ab].jsonl", eval=[str(folder / name)]), ["text"])


def test_a_column_that_no_row_has_names_those_there_are(folder: Path) -> None:
    for _ in range(2):  # also where the cache is there already
        with pytest.raises(DataError) as caught:
            load_records(data(folder, "a.jsonl", columns={"text": "body"}), ["text", "label"])
        assert caught.value.problem == (
            "data.train: no row has a value in column 'label'; the columns are 'body', 'topic'"
        )
        assert "--set data.columns.label=" in caught.value.fix
    with pytest.raises(DataError, match="column 'topik'") as caught:
        load_records(data(folder, "a.jsonl", columns={"text": "body", "label": "topik"}), ["text", "label"])
    assert "--set data.columns.label=topic" in caught.value.fix
    with pytest.raises(DataError, match="column 'other'"):  # not required, but named
        load_records(data(folder, "a.jsonl", columns={"text": "body", "text_pair": "other"}), ["text"])


def test_the_held_out_files_need_the_columns_too(folder: Path) -> None:
    (folder / "held_out.csv").write_text("text,label\na,1\n")
    with pytest.raises(DataError, match=r"data\.eval: no row has a value in column 'body'"):
        load_records(data(folder, "a.jsonl", eval=[str(folder / "held_out.csv")]), ["text"])


def spoil(folder: Path, count: int) -> None:
    with (folder / "a.jsonl").open("a") as file:
        file.write("oops\n" * count)


def test_bad_rows_are_left_out_and_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    spoil(folder, 1)
    with caplog.at_level(logging.WARNING):
        splits = load_records(data(folder, "a.jsonl"), ["text"])
    assert (splits.schema.num_rows, splits.schema.num_bad) == (20, 1)
    (listed,) = splits.schema.bad_rows
    assert f"1 of 21 rows cannot be read; the first is {folder}/a.jsonl:21: it is not JSON" in caplog.text
    assert str(listed) in caplog.text
    assert str(listed) in splits.schema.describe()


def test_bad_rows_stop_the_run_where_that_is_asked_for(folder: Path) -> None:
    spoil(folder, 1)
    with pytest.raises(
        DataError, match=r"1 of 21 rows cannot be read; the first is .*a\.jsonl:21: it is not JSON"
    ) as caught:
        load_records(data(folder, "a.jsonl", bad_rows="stop"), ["text"])
    assert "data.bad_rows=set_aside" in caught.value.fix
    assert "bad_rows.jsonl" in caught.value.fix


def test_too_many_bad_rows_stop_the_run(folder: Path) -> None:
    spoil(folder, 2)
    with pytest.raises(DataError, match="2 of 22 rows cannot be read") as caught:
        load_records(data(folder, "a.jsonl"), ["text"])
    assert "--set data.max_bad_fraction=0.1" in caught.value.fix
    assert len(load_records(data(folder, "a.jsonl", max_bad_fraction=0.1), ["text"]).train) == 20


@pytest.mark.parametrize(
    ("rows", "expected"), [("x\ny\n", "2 of 2 rows cannot be read"), ("\n", "there is no row in 1")]
)
def test_no_good_row_at_all(folder: Path, rows: str, expected: str) -> None:
    (folder / "a.jsonl").write_text(rows)
    with pytest.raises(DataError, match=expected):
        load_records(data(folder, "a.jsonl", max_bad_fraction=1.0), ["text"])


def test_required_columns_that_are_never_there_together(folder: Path) -> None:
    (folder / "a.jsonl").write_text('{"body": "x"}\n{"topic": 1}\n')
    with pytest.raises(DataError, match=r"2 of 2 rows cannot be read; the first is .*a\.jsonl:1: topic is missing"):
        load_records(data(folder, "a.jsonl", max_bad_fraction=1.0), ["text", "label"])


def test_a_wrong_path_names_what_is_near(folder: Path) -> None:
    with pytest.raises(DataError, match=r"data\.train: there is no file .*held-out") as caught:
        load_records(data(folder, "held-out.jsonl"), ["text"])
    assert "held_out.jsonl" in caught.value.fix
    with pytest.raises(DataError, match="is a folder") as caught:
        load_records(data(folder, ""), ["text"])
    assert "*.jsonl" in caught.value.fix
    with pytest.raises(DataError, match=r"data\.eval: no file matches"):
        load_records(data(folder, "a.jsonl", eval=[str(folder / "*.csv")]), ["text"])
