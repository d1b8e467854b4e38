from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drumline.config.inference import RowsConfig
from drumline.errors import ConfigError, DataError
from drumline.infer.frozen_rows import FrozenRows
from drumline.infer.ledger_folder import make_folders
from drumline.infer.records import Row
from drumline.infer.rows import (
    MOST_LEVELS,
    are_same_rows,
    check_columns,
    freeze_rows,
    prepare_rows,
    rows_of,
    write_rows,
)
from drumline.predictions import PredictionDir
from drumline.rundir import read_json


def read_all(directory: PredictionDir) -> list[Row]:
    frozen = FrozenRows(directory)
    try:
        return frozen.read(range(read_json(directory.rows_facts)["num_rows"]))
    finally:
        frozen.close()


def jsonl(path: Path, *lines: str) -> RowsConfig:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8", errors="surrogateescape")
    return RowsConfig(files=[str(path)])


def test_rows_come_back_in_any_order(tmp_path: Path) -> None:
    directory = PredictionDir(tmp_path)
    values = [{"text": "é" * number, "n": number} for number in range(20)]
    write_rows(directory, rows_of(values), {"sources": []})
    frozen = FrozenRows(directory)
    assert [row.values for row in frozen.read([7, 8, 9, 3, 19, 0])] == [values[n] for n in (7, 8, 9, 3, 19, 0)]
    assert [row.number for row in frozen.read([5, 4])] == [5, 4]
    assert frozen.read([]) == []
    directory.rows.unlink()
    assert frozen.read([1])[0].values == values[1]
    frozen.close()
    with pytest.raises(DataError, match="are gone"):
        FrozenRows(directory)


def nested(levels: int, *, mapping: bool = False) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if mapping else [value]
    return value


@pytest.mark.parametrize("mapping", [False, True])
def test_a_row_that_is_nested_too_deeply_is_one_bad_row(tmp_path: Path, mapping: bool) -> None:
    """Some of these Python could write as JSON, and not read again: they ended the run of all rows."""
    directory = PredictionDir(tmp_path)
    levels = [3, MOST_LEVELS - 2, MOST_LEVELS, 900, 985, 990, 5000]
    write_rows(directory, rows_of({"id": n, "deep": nested(n, mapping=mapping)} for n in levels), {})
    rows = read_all(directory)
    assert [row.values["id"] for row in rows] == levels
    assert [row.values.get("deep") for row in rows[:2]] == [nested(n, mapping=mapping) for n in levels[:2]]
    assert [row.problem for row in rows] == [None] * 2 + ["it is nested too deeply: at most 200 levels are taken"] * 5


def test_brackets_in_a_text_are_no_levels(tmp_path: Path) -> None:
    directory = PredictionDir(tmp_path)
    write_rows(directory, rows_of(["[{" * 500]), {})
    assert read_all(directory) == [Row(0, {"text": "[{" * 500})]


def test_what_is_known_of_all_rows(tmp_path: Path) -> None:
    directory = PredictionDir(tmp_path)
    write_rows(directory, [Row(0, {"b": 1}), Row(1, {}, "line 2: torn"), Row(2, {"a": 2, "b": 3})], {"sources": ["x"]})
    facts = read_json(directory.rows_facts)
    assert (facts["num_rows"], facts["num_bad"], facts["columns"], facts["sources"]) == (3, 1, ["b", "a"], ["x"])
    assert read_all(directory)[1] == Row(1, {}, "line 2: torn")


def test_values_of_numpy_and_paths_are_kept_as_json_has_them(tmp_path: Path) -> None:
    directory = PredictionDir(tmp_path)
    write_rows(directory, rows_of([{"a": np.float32(0.5), "b": np.arange(2), "c": Path("x")}, {"a": object()}]), {})
    first, second = read_all(directory)
    assert first.values == {"a": 0.5, "b": [0, 1], "c": "x"}
    assert second.problem == "it holds what JSON cannot: a object"


def test_texts_are_rows_and_other_things_are_not() -> None:
    assert [row.values for row in rows_of(["a", {"q": 1}])] == [{"text": "a"}, {"q": 1}]
    with pytest.raises(DataError, match="row 1 is a int"):
        list(rows_of(["a", 3]))  # type: ignore[list-item]


def test_bad_rows_keep_their_place(tmp_path: Path) -> None:
    config = jsonl(tmp_path / "in.jsonl", '{"text": "a"}', "{torn", '{"text": "\udcff"}', "[1]", '{"text": "b"}')
    prepare_rows(PredictionDir(tmp_path / "run"), config)
    rows = read_all(PredictionDir(tmp_path / "run"))
    assert [row.values.get("text") for row in rows] == ["a", None, "\ufffd", None, "b"]
    assert [(row.problem or "").partition(":")[0] for row in rows] == ["", "line 2", "line 3", "line 4", ""]
    assert rows[2].problem == "line 3: it is not UTF-8: byte 0xff"


def test_a_row_with_one_bad_value_keeps_the_others(tmp_path: Path) -> None:
    directory = PredictionDir(tmp_path)
    bad = {"id": 2, "text": "gr\udcfcn", "raw": b"x", "list": ["\ud800", 1]}
    write_rows(directory, rows_of([{"id": 1}, bad, {"id": "\udcff"}, {"id": "\udcfe"}]), {}, "id")
    rows = read_all(directory)
    assert rows[1].values == {"id": 2, "text": "gr\ufffdn", "list": ["\ufffd", 1]}
    assert rows[1].problem is not None and rows[2].values == {"id": "\ufffd"}
    facts = read_json(directory.rows_facts)
    assert (facts["num_bad"], facts["columns"]) == (3, ["id", "text", "list"])
    with pytest.raises(DataError, match="rows 0 and 1"):
        write_rows(PredictionDir(tmp_path / "twice"), rows_of([{"id": 1}, {"id": 1, "x": b""}]), {}, "id")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": 1}, {"id": 2}, {"id": 1}], "rows 0 and 2 .* have the same 'id': '1'"),
        ([{"id": 1}, {"text": "x"}], "row 1 has no 'id'"),
        ([{"id": None}], "row 0 has no 'id'"),
    ],
)
def test_ids_must_be_there_and_differ(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    directory = PredictionDir(tmp_path)
    with pytest.raises(DataError, match=message):
        write_rows(directory, rows_of(rows), {}, "id")
    assert not directory.rows_facts.exists()


def test_ids_of_rows_that_cannot_be_read_are_not_asked_for(tmp_path: Path) -> None:
    write_rows(PredictionDir(tmp_path), [Row(0, {"id": "1"}), Row(1, {}, "torn"), Row(2, {"id": 1})], {}, "id")
    assert len(read_all(PredictionDir(tmp_path))) == 3


def test_a_run_goes_on_only_with_the_data_it_began_with(tmp_path: Path) -> None:
    directory = PredictionDir(tmp_path / "run")
    config = jsonl(tmp_path / "in.jsonl", '{"text": "a"}')
    prepare_rows(directory, config)
    os.utime(tmp_path / "in.jsonl", (1, 1))
    prepare_rows(directory, config)
    with pytest.raises(DataError, match=r"have changed.*rows\.limit was None, and is 1 now"):
        prepare_rows(directory, config.model_copy(update={"limit": 1}))
    jsonl(tmp_path / "in.jsonl", '{"text": "another"}')
    with pytest.raises(DataError, match="the data have changed since this run began"):
        prepare_rows(directory, config)
    prepare_rows(directory, config, compare=False)  # a worker in another's place
    jsonl(tmp_path / "in.jsonl", '{"text": "b"}')
    os.utime(tmp_path / "in.jsonl", (2, 2))
    with pytest.raises(DataError, match=r"in\.jsonl had the SHA-256 [0-9a-f]{16}\.\.\., and has"):
        prepare_rows(directory, config)


def test_rows_of_a_program_are_told_by_their_content(tmp_path: Path) -> None:
    directory = PredictionDir(tmp_path)
    assert freeze_rows(directory, lambda: rows_of(["a", "b"]), lambda: {})
    assert are_same_rows(directory, rows_of(["a", "b"]))
    assert not are_same_rows(directory, rows_of(["a", "c"]))
    assert freeze_rows(directory, lambda: rows_of(["z"]), lambda: {})
    assert [row.values["text"] for row in read_all(directory)] == ["a", "b"]


def test_waiting_for_the_rows_ends_when_asked(tmp_path: Path) -> None:
    directory = PredictionDir(tmp_path)

    def meanwhile() -> dict[str, Any]:
        assert not freeze_rows(directory, lambda: [], lambda: {}, stop=lambda: True)
        return {}

    assert freeze_rows(directory, lambda: rows_of(["a"]), meanwhile)


def test_columns_that_are_there_already_are_refused() -> None:
    check_columns(["text"], ["answer"], "")
    check_columns(["answer", "error"], ["answer"], "model_")
    with pytest.raises(ConfigError, match="'answer' already") as caught:
        check_columns(["text", "answer"], ["answer"], "")
    assert "--set output.prefix=model_" in caught.value.fix
    with pytest.raises(ConfigError, match="'error' already"):
        check_columns(["error"], ["answer"], "")


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be made") as caught:
        make_folders(PredictionDir(tmp_path / "file" / "run"))
    assert "run_dir" in caught.value.fix
