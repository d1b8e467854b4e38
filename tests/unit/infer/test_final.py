from __future__ import annotations

import csv
import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from drumline.config.inference import InferenceConfig
from drumline.errors import ConfigError, DataError
from drumline.infer.final import check_output, is_complete, write_final
from drumline.infer.ledger import Ledger
from drumline.infer.ledger_folder import FINAL_LOCK, lock_file
from drumline.infer.locks import Locks
from drumline.infer.planning import plan_window
from drumline.infer.records import Answer, Prepared, Row, Window
from drumline.infer.rows import write_rows
from drumline.predictions import PredictionDir

Answering = Callable[[Row], Answer]
INPUT: list[Mapping[str, Any] | str] = [
    {"id": "a", "text": "four", "tags": ["x", "y"]},
    "line 2: it is not JSON",
    {"id": "c", "text": "ü,\r\n"},
    {"id": "d", "text": "refused"},
    {"id": "e", "text": "longer than all"},
]


def config_for(out: Path, **output: Any) -> InferenceConfig:
    return InferenceConfig.model_validate(
        {"model": {"path": "m"}, "rows": {"files": ["r"], "label": "label"}, "output": {"file": out, **output}}
    )


def answered(
    out: Path, answer: Answering, values: Sequence[Mapping[str, Any] | str], most: int = 10**6
) -> PredictionDir:
    """A run of which at most so many batches (of one row each) are done; a text among the rows is a problem."""
    directory = PredictionDir(config_for(out).directory)
    rows = [Row(n, {}, each) if isinstance(each, str) else Row(n, each) for n, each in enumerate(values)]
    write_rows(directory, rows, {})
    ledger = Ledger(directory.path, "a")

    def plan(first_row: int, first_batch: int, number: int) -> Window:
        found = ledger.read(range(first_row, min(first_row + 2, ledger.num_rows)))
        prepared = [row.problem or Prepared(row.number, len(str(row.values)), 1) for row in found]
        return plan_window(number, first_row, first_batch, prepared, 1, 1)

    while ledger.plan_next(plan):
        continue
    while most and (lease := ledger.take()) is not None:
        ledger.finish(lease, [answer(row) for row in ledger.read(lease.batch.rows)])
        most -= 1
    ledger.close()
    return directory


def upper(row: Row) -> Answer:
    if row.values["text"] == "refused":
        return {"error": "it cannot be done"}
    return {"answer": row.values["text"].upper(), "new_tokens": 3}


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_each_row_has_its_columns_its_answer_and_its_error(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    directory = answered(out, upper, INPUT)
    assert not is_complete(directory, out)
    assert write_final(directory, config_for(out), ("answer", "new_tokens"))
    none = {"answer": None, "new_tokens": None}
    assert lines_of(out) == [
        {"id": "a", "text": "four", "tags": ["x", "y"], "answer": "FOUR", "new_tokens": 3, "error": None},
        {**none, "error": "line 2: it is not JSON"},
        {"id": "c", "text": "ü,\r\n", "answer": "Ü,\r\n", "new_tokens": 3, "error": None},
        {"id": "d", "text": "refused", **none, "error": "it cannot be done"},
        {"id": "e", "text": "longer than all", "answer": "LONGER THAN ALL", "new_tokens": 3, "error": None},
    ]
    assert "ü".encode() in out.read_bytes()


def test_what_is_bulky_goes_when_the_file_has_its_name_and_a_second_call_finds_it_done(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    directory = answered(out, upper, INPUT)
    write_final(directory, config_for(out), ("answer", "new_tokens"))
    before = out.stat()
    left = {path.name for path in directory.ledger.iterdir()}
    assert left == {"rows.json", "windows", "state", "locks", "trouble"}
    assert write_final(directory, config_for(out), ("answer", "new_tokens"))
    assert (out.stat().st_ino, out.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert is_complete(directory, out)
    summary = json.loads(directory.summary.read_text())
    assert (summary["num_rows"], summary["num_failed"]) == (5, 2)
    assert summary["errors"] == {"line #: it is not JSON": 1, "it cannot be done": 1}
    assert sum(count for _, count in summary["lengths"]) == 4


def test_csv_has_a_header_and_nested_values_as_json(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    directory = answered(out, lambda row: {"p": {"yes": 0.5}, "sure": True, "n": 0.25}, INPUT)
    write_final(directory, config_for(out, prefix="m_"), ())
    text = out.read_bytes()
    assert text.count(b"\r") == 1  # the one in a cell
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "text", "tags", "m_p", "m_sure", "m_n", "m_error"]
    assert list(rows[0].values()) == ["a", "four", '["x", "y"]', '{"yes": 0.5}', "true", "0.25", ""]
    assert list(rows[1].values()) == ["", "", "", "", "", "", "line 2: it is not JSON"]
    assert rows[2]["text"] == "ü,\r\n"
    assert len(rows) == 5


def test_parquet_has_a_type_a_column(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    values: list[Mapping[str, Any] | str] = [
        {"n": 1, "mixed": 1, "half": 1, "meta": {"a": 1}},
        {"n": 2, "mixed": "x", "half": 0.5, "meta": {"b": [2]}},
        {"n": None, "mixed": [1], "half": None, "never": None, "empty": {}},
    ]
    vectors = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    directory = answered(out, lambda row: {"embedding": vectors[row.number], "label": "yes"}, values)
    write_final(directory, config_for(out), ())
    table = pyarrow.parquet.read_table(out)
    types = {field.name: str(field.type) for field in table.schema}
    assert types["embedding"] == "list<element: float>"
    assert (types["n"], types["half"], types["mixed"]) == ("int64", "double", "string")
    assert (types["never"], types["empty"], types["error"], types["label"]) == ("string",) * 4
    rows = table.to_pylist()
    assert np.array_equal(np.array([row["embedding"] for row in rows], np.float32), vectors)
    assert [row["mixed"] for row in rows] == ["1", "x", "[1]"]
    assert [row["meta"] for row in rows] == [{"a": 1, "b": None}, {"a": None, "b": [2]}, None]
    assert rows[2]["empty"] == "{}"


@pytest.mark.parametrize(("ending", "size"), [("jsonl", 0), ("csv", len("error\n"))])
def test_no_rows_give_a_file_without_rows(tmp_path: Path, ending: str, size: int) -> None:
    out = tmp_path / f"out.{ending}"
    directory = answered(out, upper, [])
    assert write_final(directory, config_for(out), ())
    assert out.stat().st_size == size
    assert json.loads(directory.summary.read_text())["num_rows"] == 0


def test_no_rows_give_a_parquet_file_with_columns(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    write_final(answered(out, upper, []), config_for(out), ("answer",))
    assert pyarrow.parquet.read_table(out).schema.names == ["answer", "error"]


def test_numbers_that_json_has_not_are_null_and_half_characters_are_escaped(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    infinite = {"perplexity": float("inf"), "vector": np.array([np.nan, 1], np.float32)}
    directory = answered(out, lambda row: {"text": "\ud800"} if row.number else infinite, [{"a": 1}, {"a": 2}])
    write_final(directory, config_for(out), ())
    first, second = lines_of(out)
    assert (first["perplexity"], first["vector"]) == (None, [None, 1.0])
    assert second["text"] == "\ud800"


def test_what_is_done_so_far_can_be_had_at_any_time(tmp_path: Path) -> None:
    out, so_far = tmp_path / "out.jsonl", tmp_path / "so_far.csv"
    directory = answered(out, upper, INPUT, most=2)
    assert not write_final(directory, config_for(out), ("answer", "new_tokens"), so_far)
    with so_far.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["a", "", "d"]
    assert not out.exists()
    assert directory.rows.exists()
    assert not directory.summary.exists()
    with pytest.raises(DataError, match="not all rows"):
        write_final(directory, config_for(out), ("answer", "new_tokens"))


def test_a_file_of_somebody_else_is_not_written_over(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    directory = answered(out, upper, INPUT)
    out.write_text("mine")
    with pytest.raises(DataError, match="is not from the run"):
        write_final(directory, config_for(out), ("answer", "new_tokens"))
    assert out.read_text() == "mine"
    assert directory.rows.exists()


def test_a_full_disk_leaves_everything_for_the_next_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.jsonl"
    directory = answered(out, upper, INPUT)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_final(directory, config_for(out), ("answer", "new_tokens"))
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == [directory.path]
    write_final(directory, config_for(out), ("answer", "new_tokens"))
    assert len(lines_of(out)) == 5


def test_answers_that_a_disk_has_lost_are_made_anew(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    directory = answered(out, upper, INPUT)
    file = directory.answers / "a.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(DataError, match="answers of 1 batches are gone"):
        write_final(directory, config_for(out), ("answer", "new_tokens"))
    ledger = Ledger(directory.path, "b")
    lease = ledger.take()
    assert lease is not None
    ledger.finish(lease, [upper(row) for row in ledger.read(lease.batch.rows)])
    ledger.close()
    assert write_final(directory, config_for(out), ("answer", "new_tokens"))
    assert len(lines_of(out)) == 5


def test_waiting_for_another_who_writes_ends_when_asked(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    directory = answered(out, upper, INPUT)
    locks = Locks(lock_file(directory))
    locks.try_take(FINAL_LOCK)
    assert not write_final(directory, config_for(out), ("answer", "new_tokens"), stop=lambda: True)
    locks.close()
    assert not out.exists()


def test_an_answer_with_a_column_that_was_not_announced_is_a_mistake(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    directory = answered(out, upper, INPUT)
    with pytest.raises(ValueError, match="not announced: new_tokens"):
        write_final(directory, config_for(out), ("answer",))


def test_an_output_that_cannot_be_written_is_said_before(tmp_path: Path) -> None:
    check_output(tmp_path / "new" / "out.csv")
    assert list((tmp_path / "new").iterdir()) == []
    with pytest.raises(ConfigError, match="no ending that says"):
        check_output(tmp_path / "out.xlsx")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        check_output(tmp_path / "folder.csv")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        check_output(tmp_path / "file" / "out.csv")


def test_without_any_answer_columns_have_the_types_of_other_files(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    directory = answered(out, lambda row: {}, [])
    assert write_final(directory, config_for(out, prefix="m_"), ("embedding", "probabilities", "num_tokens"))
    types = {field.name: str(field.type) for field in pyarrow.parquet.read_schema(out)}
    wanted = {"m_probabilities": "string", "m_num_tokens": "int64", "m_error": "string"}
    assert types.pop("m_embedding") in ("list<element: float>", "list<item: float>") and types == wanted
