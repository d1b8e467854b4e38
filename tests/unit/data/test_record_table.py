"""Rows of CSV and TSV files, and which columns hold numbers."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import pytest

from drumline.data import record_table
from drumline.data.record_files import read_rows
from drumline.data.record_table import find_cell_types
from drumline.data.record_text import BadRow
from drumline.errors import DataError


def rows(path: Path, content: str | bytes) -> list[tuple[int, Any]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return [(line, row) for line, row in read_rows(path, find_cell_types([path]))]


def good(path: Path, content: str) -> list[dict[str, Any]]:
    return [row for _, row in rows(path, content) if isinstance(row, dict)]


@pytest.mark.parametrize(("name", "mark"), [("a.csv", ","), ("a.tsv", "\t"), ("A.CSV", ",")])
def test_cells_may_hold_newlines_quotes_and_separators(tmp_path: Path, name: str, mark: str) -> None:
    text = mark.join(["text", "label"]) + "\r\n" + mark.join([f'"a{mark}""b""\nc"', "x"]) + "\r\n\r\n"
    text += mark.join(["plain", "y"])
    assert rows(tmp_path / name, text) == [
        (2, {"text": f'a{mark}"b"\nc', "label": "x"}),
        (5, {"text": "plain", "label": "y"}),
    ]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "-2", "0"], [1, -2, 0]),
        (["1", "2.5", ""], [1.0, 2.5, None]),
        (["1e-3", ".5", "2."], [1e-3, 0.5, 2.0]),
        ([" 1", "2 ", "+3"], [1, 2, 3]),
        (["1", "x", "2"], ["1", "x", "2"]),
        (["007", "1", "2"], ["007", "1", "2"]),
        (["1.5", "1e999", "2"], ["1.5", "1e999", "2"]),
        (["nan", "1", "2"], ["nan", "1", "2"]),
        (["1_000", "1", "2"], ["1_000", "1", "2"]),
        (["true", "false", ""], ["true", "false", None]),
        (["99999999999999999999", "1", "2"], [99999999999999999999, 1, 2]),
        (["", "", ""], [None, None, None]),
    ],
)
def test_a_column_of_numbers_holds_numbers(tmp_path: Path, cells: list[str], expected: list[Any]) -> None:
    text = "id,value\n" + "".join(f"k,{cell}\n" for cell in cells)
    found = [row["value"] for row in good(tmp_path / "a.csv", text)]
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


def test_a_column_is_of_one_type_over_all_files(tmp_path: Path) -> None:
    for name, cell in ("a.csv", "1"), ("b.csv", "x"):
        (tmp_path / name).write_text(f"label,size\n{cell},2\n")
    assert find_cell_types([tmp_path / "a.csv", tmp_path / "b.csv"]) == {"size": int}
    assert find_cell_types([tmp_path / "a.csv"]) == {"label": int, "size": int}


def test_bad_rows(tmp_path: Path) -> None:
    found = rows(tmp_path / "a.csv", 'text,label\na,1\nb\nc,2,3\n"d"e,4\nf,5\n"g\nh",6,7\ni,8\n')
    assert [row for _, row in found if isinstance(row, dict)] == [
        {"text": "a", "label": 1},
        {"text": "f", "label": 5},
        {"text": "i", "label": 8},
    ]
    bad = [(line, row.problem, row.text) for line, row in found if isinstance(row, BadRow)]
    assert [(line, text) for line, _, text in bad] == [(3, "b"), (4, "c,2,3"), (5, '"d"e,4'), (7, '"g\nh",6,7')]
    assert bad[0][1] == "it has 1 cells, the header has 2"
    assert bad[2][1].startswith("it is not CSV: ")


def test_a_quote_that_is_never_closed_ends_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"a\.csv:3: a quote is not closed"):
        rows(tmp_path / "a.csv", 'text,label\na,1\n"b,2\nc,3\n')
    monkeypatch.setattr(record_table, "MAX_ROW_CHARS", 50)
    with pytest.raises(DataError, match=r"a\.csv:2: a quote is not closed"):
        rows(tmp_path / "a.csv", 'text,label\n"b,2\n' + "c,3\n" * 100)
    with pytest.raises(DataError, match=r"a\.csv:2: the line is longer than 50 characters"):
        rows(tmp_path / "a.csv", "text,label\n" + "b" * 100)


def test_long_cells_are_read_and_the_packages_limit_is_as_before(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    assert good(tmp_path / "a.csv", "text\n" + "b" * 2 * before)[0]["text"] == "b" * 2 * before
    assert csv.field_size_limit() == before


def test_headers(tmp_path: Path) -> None:
    assert good(tmp_path / "a.csv", "\ufeff, text ,label\n0,a,x\n") == [{"column_1": 0, "text": "a", "label": "x"}]
    assert rows(tmp_path / "a.csv", "") == []
    assert rows(tmp_path / "a.csv", "text,label\n") == []
    with pytest.raises(DataError, match="names 'text' twice"):
        rows(tmp_path / "a.csv", "text,text\na,b\n")
    with pytest.raises(DataError, match="the header is not UTF-8"):
        rows(tmp_path / "a.csv", "größe,label\n1,".encode("latin-1") + "größe\n".encode())


def test_compressed_tables(tmp_path: Path) -> None:
    assert rows(tmp_path / "a.tsv.gz", gzip.compress(b"text\tlabel\na, b\t1\n")) == [(2, {"text": "a, b", "label": 1})]


def test_cells_with_zero_bytes_are_bad_rows(tmp_path: Path) -> None:
    assert [
        row.problem for _, row in rows(tmp_path / "a.csv", "text,label\na,1\n\0\0,\0\nb,2\n") if isinstance(row, BadRow)
    ] == ["it has zero bytes in it"]


def test_a_number_too_long_for_python_is_text(tmp_path: Path) -> None:
    assert good(tmp_path / "a.csv", "n\n" + "9" * 5000 + "\n") == [{"n": "9" * 5000}]
