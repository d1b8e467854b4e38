"""Rows of JSON and JSON Lines files, good and bad."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from drumline.data import record_json, record_text
from drumline.data.record_files import read_rows
from drumline.data.record_text import BadRow
from drumline.errors import DataError


def rows(path: Path, content: str | bytes) -> list[tuple[int, Any]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return [(line, row) for line, row in read_rows(path, {})]


def problems(found: list[tuple[int, Any]]) -> list[tuple[int, str]]:
    return [(line, row.problem) for line, row in found if isinstance(row, BadRow)]


RECORDS = [{"text": 'a "quoted" [text] \\', "label": 1}, {"text": "two\nlines, ä 𝄞"}, {"deep": {"a": [{"b": []}]}}, {}]


@pytest.mark.parametrize("chunk", [1, 3, 7, 2**20])
@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_is_read_in_pieces_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, indent: int | None
) -> None:
    monkeypatch.setattr(record_json, "CHUNK_CHARS", chunk)
    for ensure_ascii in (True, False):
        text = json.dumps(RECORDS, indent=indent, ensure_ascii=ensure_ascii)
        assert [row for _, row in rows(tmp_path / "a.json", text)] == RECORDS


def test_memory_holds_one_piece_of_an_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_json, "CHUNK_CHARS", 1000)
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": "x" * 50, "number": i} for i in range(2000)]))
    with record_text.open_text(path, "\n") as text:
        array = record_json._Array(path, text)
        held = [len(array._text) for _ in array.rows()]
    assert len(held) == 2000
    assert max(held) <= 2000


@pytest.mark.parametrize("chunk", [1, 5, 2**20])
def test_bad_rows_of_an_array_are_told_from_good_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(record_json, "CHUNK_CHARS", chunk)
    text = """[
{"n": 1},
{"n": 'two, {"n": 2}'},
{"n": 3}
{"n": [4, {"m": "}"}],},
12, 3.5,
"text, ]", null,
[{"n": 5}],
{"n": True}, }, {"n": 6},, {"n": 7},
]
"""
    found = rows(tmp_path / "a.json", text)
    assert [row["n"] for _, row in found if isinstance(row, dict)] == [1, 3, 6, 7]
    assert [line for line, _ in problems(found)] == [3, 5, 6, 6, 7, 7, 8, 9, 9]
    by_line = dict(problems(found))
    assert by_line[3].startswith("it is not JSON: expecting")
    assert by_line[8] == "it is a list, not an object with named values"
    texts = {line: row.text for line, row in found if isinstance(row, BadRow)}
    assert texts[5] == '{"n": [4, {"m": "}"}],}'
    assert texts[8] == '[{"n": 5}]'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"a": 1},\n{"a": 2}', r"a\.json:2: the array does not end"),
        ('[{"a": 1},\n', r"a\.json:2: the array does not end"),
        ("[", r"a\.json:1: the array does not end"),
        ('[{"a": 1},\n{"a": ', r"a\.json:2: a bracket or a quote is not closed"),
        ('[{"a": 1},\n\n{"a": "x},\n{"a": 3}]', r"a\.json:3: a bracket or a quote is not closed"),
        ('[{"a": 1}]\n[{"a": 2}]', r"a\.json:2: more text follows the end of the array"),
        ('{\n"rows": [{"a": 1}]}', "holds one object that goes over several lines"),
        ("3", "neither an array nor an object"),
        ('"text"', "neither an array nor an object"),
    ],
)
def test_what_is_no_whole_array_ends_the_reading(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(DataError, match=expected) as caught:
        rows(tmp_path / "a.json", text)
    assert caught.value.fix


def test_a_row_without_end_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_json, "CHUNK_CHARS", 10)
    monkeypatch.setattr(record_json, "MAX_ROW_CHARS", 100)
    with pytest.raises(DataError, match=r"a\.json:1: a bracket or a quote is not closed"):
        rows(tmp_path / "a.json", '[{"a": "' + "x" * 5000)


@pytest.mark.parametrize("text", ["", "  \n", "[]", " [ ] \n"])
def test_nothing_is_no_row(tmp_path: Path, text: str) -> None:
    assert rows(tmp_path / "a.json", text) == []
    assert text.strip() or rows(tmp_path / "a.jsonl", text) == []


def test_objects_a_line_are_read_in_spite_of_the_name(tmp_path: Path) -> None:
    assert rows(tmp_path / "a.json", '{"a": 1}\n{"a": 2}\n') == [(1, {"a": 1}), (2, {"a": 2})]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "A.JSONL", "a.b.jsonl"])
def test_lines(tmp_path: Path, name: str) -> None:
    found = rows(tmp_path / name, '\ufeff{"a": 1}\r\n\n  \n{"a": "x\u2028y"}')
    assert found == [(1, {"a": 1}), (4, {"a": "x\u2028y"})], "only a newline ends a line"


def test_bad_lines(tmp_path: Path) -> None:
    text = '{"a": 1}\n{"a": }\n[1]\nnull\n{"a": 2}\n' + '{"a":' * 100_000 + '\n{"a": 3} x\n{"a": ' + "9" * 5000 + "}\n{"
    found = rows(tmp_path / "a.jsonl", text)
    assert [row for _, row in found if isinstance(row, dict)] == [{"a": 1}, {"a": 2}]
    assert problems(found) == [
        (2, "it is not JSON: expecting value"),
        (3, "it is a list, not an object with named values"),
        (4, "it is a NoneType, not an object with named values"),
        (6, "it is nested too deeply"),
        (7, "it is not JSON: extra data"),
        (8, problems(found)[5][1]),
        (9, "it is not JSON: expecting property name enclosed in double quotes"),
    ]
    assert "4300 digits" in problems(found)[5][1]
    assert all(len(row.text) <= 500 for _, row in found if isinstance(row, BadRow))


def test_a_line_that_is_too_long_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_json, "MAX_ROW_CHARS", 20)
    found = rows(tmp_path / "a.jsonl", '{"a": 1}\n{"a": "' + "x" * 100 + '"}\n{"a": 2}\n')
    assert problems(found) == [(2, "it is longer than 20 characters")]
    assert [row for _, row in found if isinstance(row, dict)] == [{"a": 1}, {"a": 2}]


def test_compressed_files(tmp_path: Path) -> None:
    assert rows(tmp_path / "a.jsonl.gz", gzip.compress(b'{"a": 1}\n')) == [(1, {"a": 1})]
    assert rows(tmp_path / "a.json.gz", gzip.compress(b'[{"a": 1}]')) == [(1, {"a": 1})]


@pytest.mark.parametrize(
    "content",
    [gzip.compress(b'{"a": 1}\n' * 1000)[:-9], b"no gzip at all", b"\x1f\x8b\x08" + bytes(30)],
    ids=["cut", "no gzip", "empty gzip"],
)
def test_a_damaged_compressed_file(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl\.gz is damaged"):
        rows(tmp_path / "a.jsonl.gz", content)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "cp1252"])
def test_other_encodings(tmp_path: Path, encoding: str) -> None:
    content = '{"text": "café"}\r\n{"text": "b"}\r\n{"text"\r\n'
    found = rows(tmp_path / "a.jsonl", content.encode(encoding))
    assert found[:2] == [(1, {"text": "café"}), (2, {"text": "b"})]
    assert [line for line, _ in problems(found)] == [3]


def test_utf_16_that_is_cut_off(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl begins as UTF-16 and goes on as something else"):
        rows(tmp_path / "a.jsonl", '{"a": 1}\n'.encode("utf-16")[:-1])


@pytest.mark.parametrize("name", ["a.txt", "a", "a.gz", "a.parquet.gz", "a.jsonl.zip", ".json"])
def test_an_unknown_ending(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="no ending that says what it is"):
        rows(tmp_path / name, "{}")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*a\.json: No such file"):
        list(read_rows(tmp_path / "a.json", {}))
