"""Rows of Parquet files as JSON would hold them."""

from __future__ import annotations

import datetime
import json
import logging
import sys
from decimal import Decimal
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from drumline.data.record_files import read_rows
from drumline.data.record_text import BadRow
from drumline.errors import DataError, MissingExtra


def test_rows_of_all_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": [f"t{i}" for i in range(2500)], "tags": [[i, None] for i in range(2500)]})
    pyarrow.parquet.write_table(table, path, row_group_size=700)
    found = list(read_rows(path, {}))
    assert [number for number, _ in found] == list(range(1, 2501))
    assert found[2400].row == {"text": "t2400", "tags": [2400, None]}


def test_values_that_json_lacks_become_text_and_numbers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.parquet"
    columns = {
        "day": [datetime.date(2024, 1, 2), None],
        "at": [datetime.datetime(2024, 1, 2, 3, 4, 5), None],
        "took": [datetime.timedelta(seconds=1.5), None],
        "price": [Decimal("1.25"), None],
        "kind": pyarrow.array(["x", None]).dictionary_encode(),
        "image": [{"bytes": b"\x00", "path": "p"}, None],
        "raw": [b"\xff", None],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    with caplog.at_level(logging.WARNING, "drumline"):
        (_, first), (_, second) = read_rows(path, {})
    assert first == {"day": "2024-01-02", "at": "2024-01-02T03:04:05", "took": 1.5, "price": 1.25, "kind": "x"}
    assert json.loads(json.dumps(first)) == first
    assert isinstance(second, dict) and set(second.values()) == {None}
    assert "columns of bytes are left out: image, raw" in caplog.text


def test_rows_that_python_cannot_hold_are_bad_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    raw = pyarrow.array([b"a", b"caf\xe9", b"c", b"d"]).view(pyarrow.string())
    at = pyarrow.array([0, 0, 2**62, 0]).cast(pyarrow.timestamp("us"))
    pyarrow.parquet.write_table(pyarrow.table({"text": raw, "at": at}), path)
    found = [row for _, row in read_rows(path, {})]
    assert [row["text"] for row in found if isinstance(row, dict)] == ["a", "d"]
    problems = [row.problem for row in found if isinstance(row, BadRow)]
    assert problems == [
        "it has a value that cannot be read: UnicodeDecodeError",
        "it has a value that cannot be read: OverflowError",
    ]


@pytest.mark.parametrize("keep", [0, 10, -20])
def test_a_damaged_file(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": [1, 2]}), path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as Parquet"):
        list(read_rows(path, {}))


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtra, match="pyarrow"):
        list(read_rows(tmp_path / "a.parquet", {}))
