"""Rows of record files in a form that is quick to read at any row."""

from __future__ import annotations

import json
import logging
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from drumline.data import record_cache
from drumline.data.record_cache import RecordRows, build_records, open_records, records_folder
from drumline.errors import DataError

ROWS = [{"text": f"row {i} ä 𝄞", "label": i % 3, "score": i / 7} for i in range(20)]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:12]) + "nonsense\n")
    (tmp_path / "b.json").write_text(json.dumps(ROWS[12:]))
    return [tmp_path / "a.jsonl", tmp_path / "b.json"]


def built(files: list[Path], *required: str) -> Path:
    folder = records_folder(files, required, files[0].parent / "cache")
    build_records(files, required, folder)
    return folder


def opened(files: list[Path], *required: str, **columns: str) -> RecordRows:
    return open_records(built(files, *required), columns)[0]


def test_rows_are_read_at_any_place_in_the_order_of_the_files(files: list[Path]) -> None:
    rows = opened(files)
    assert len(rows) == 20
    assert [rows[i] for i in reversed(range(20))] == ROWS[::-1]
    assert rows.__getitems__([3, 19, 3]) == [ROWS[3], ROWS[19], ROWS[3]]
    for index in (-1, 20):
        with pytest.raises(IndexError, match=f"row {index} of 20"):
            rows[index]


def test_rows_are_pickled_by_path(files: list[Path]) -> None:
    rows = opened(files)
    assert rows[0] == ROWS[0]
    pickled = pickle.dumps(rows)
    assert len(pickled) < 3000
    assert pickle.loads(pickled)[19] == ROWS[19]


def test_columns_are_renamed(files: list[Path]) -> None:
    rows = opened(files, label="score", number="label")
    assert rows[5] == {"text": "row 5 ä 𝄞", "label": 5 / 7, "number": 2}
    assert rows.schema.distinct("number") == [0, 1, 2]


def test_the_schema_comes_with_the_cache(files: list[Path]) -> None:
    schema = opened(files, "label").schema
    assert (schema.num_rows, schema.num_bad) == (20, 1)
    assert schema.columns["text"].types == {"text": 20}
    assert schema.columns["score"].types == {"number": 20}
    assert schema.distinct("label") == [0, 1, 2]


def test_bad_rows_are_written_aside(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_bytes(
        b'{"text": "\xc3\xa4"}\n{"text": null, "label": 1}\n{"text": "\xe9", "label": 1}\n'
        b'{"text": "\\ud800", "label": 1}\n'
        b'{"text": "x", "label": NaN}\n{"text": "x", "label": Infinity}\n{"text": "x", "label": 7, "\xe9": 1}\n'
    )
    rows, found = open_records(built([*files, tmp_path / "c.jsonl"], "text", "label"), {})
    assert (found.num_rows, found.num_bad) == (20, 8)
    assert found.first_bad is not None
    assert list(found.first_bad) == [0, 13, "it is not JSON: expecting value"]
    (listed,) = rows.schema.bad_rows
    lines = [json.loads(line) for line in listed.read_text().splitlines()]
    assert [(Path(line["file"]).name, line["line"], line["problem"]) for line in lines] == [
        ("a.jsonl", 13, "it is not JSON: expecting value"),
        ("c.jsonl", 1, "label is missing"),
        ("c.jsonl", 2, "text is null"),
        ("c.jsonl", 3, "it is not UTF-8: byte 0xe9"),
        ("c.jsonl", 4, "it has half a character, U+D800"),
        ("c.jsonl", 5, "label is nan"),
        ("c.jsonl", 6, "label is inf"),
        ("c.jsonl", 7, "it is not UTF-8: byte 0xe9"),
    ]
    assert lines[0]["text"] == "nonsense"
    assert json.loads(lines[2]["text"]) == {"text": None, "label": 1}


def test_what_is_missing_where_nothing_needs_it_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x", "note": null}\n{"text": "y", "note": NaN}\n{"text": "z"}\n')
    rows = opened([tmp_path / "a.jsonl"], "text")
    assert len(rows) == 3
    assert rows.schema.num_bad == 0
    assert rows.schema.bad_rows == ()


def test_more_rows_than_are_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_cache, "_BUFFERED_STARTS", 7)
    (tmp_path / "a.jsonl").write_text("".join(f'{{"n": {i}}}\n' for i in range(100)))
    rows = opened([tmp_path / "a.jsonl"])
    assert [rows[i]["n"] for i in range(100)] == list(range(100))


def test_a_cache_is_built_once_for_the_same_content(
    files: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = built(files, "text")
    before = (folder / "header.json").stat().st_ino
    os.utime(files[0])
    files[1].rename(tmp_path / "c.json")
    with caplog.at_level(logging.INFO):
        assert built([files[0], tmp_path / "c.json"], "text") == folder
    assert (folder / "header.json").stat().st_ino == before
    assert not caplog.records


def test_other_content_columns_order_or_ending_is_another_cache(files: list[Path], tmp_path: Path) -> None:
    cache, first = tmp_path / "cache", records_folder(files, ["a", "b"], tmp_path / "cache")
    assert records_folder(files, ["b", "a"], cache) == first
    assert records_folder(files, ["a"], cache) != first
    assert records_folder(files[::-1], ["a", "b"], cache) != first
    renamed = files[0].rename(tmp_path / "a.csv")
    assert records_folder([renamed, files[1]], ["a", "b"], cache) != first
    renamed.rename(files[0])
    files[1].write_text("[]")
    assert records_folder(files, ["a", "b"], cache) != first


def damage(folder: Path, what: str) -> None:
    if what == "gone":
        (folder / "starts.bin").unlink()
    elif what == "header":
        (folder / "header.json").write_text("{")
    elif what == "moved":
        header = json.loads((folder / "header.json").read_text())
        (folder / "header.json").write_text(json.dumps({**header, "key": "0" * 64}))
    else:
        rows = folder / "rows.jsonl"
        rows.write_bytes(rows.read_bytes()[:-1])


@pytest.mark.parametrize("what", ["cut", "gone", "header", "moved"])
def test_a_damaged_cache_is_an_error_and_is_built_anew(
    files: list[Path], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = built(files)
    damage(folder, what)
    with pytest.raises(DataError) as caught:
        open_records(folder, {})
    assert str(folder) in caught.value.problem
    with caplog.at_level(logging.WARNING):
        build_records(files, [], folder)
    assert "it is built anew" in caplog.text
    assert open_records(folder, {})[0][19] == ROWS[19]


def test_a_cache_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no rows at"):
        open_records(tmp_path / "x.records", {})


def test_nothing_is_left_of_a_build_that_fails(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"a": 1}')
    with pytest.raises(DataError, match="does not end"):
        built([tmp_path / "a.json"])
    assert list((tmp_path / "cache").iterdir()) == []


def test_files_that_change_meanwhile_are_refused(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    write = record_cache._write

    def changing(*arguments: Any) -> Any:
        found = write(*arguments)
        files[1].write_text("[]")
        return found

    monkeypatch.setattr(record_cache, "_write", changing)
    with pytest.raises(DataError, match="the files changed while they were read"):
        built(files)


def test_a_build_beside_another_one_finds_it_done(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    write, folder = record_cache._write, records_folder(files, [], files[0].parent / "cache")

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(record_cache, "_write", write)
        build_records(files, [], folder)
        return write(*arguments)

    monkeypatch.setattr(record_cache, "_write", overtaken)
    build_records(files, [], folder)
    assert open_records(folder, {})[0][19] == ROWS[19]
    assert list(folder.parent.iterdir()) == [folder]


def test_a_folder_that_cannot_be_written(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DataError, match=r"cannot write rows to .*cache") as caught:
        built(files)
    assert "data.cache_dir" in caught.value.fix


def test_what_killed_builds_left_is_removed_after_an_hour(files: list[Path], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    old, new = (cache / f".{digit * 64}.records.1.ab.tmp" for digit in "ab")
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "rows.jsonl").write_text("x")
    for path in (old / "rows.jsonl", old, new):
        os.utime(path, (time.time() - 4000,) * 2)
    built(files)
    assert not old.exists()
    assert new.exists(), "its file was written to just now"


def test_encodings_are_counted_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.jsonl").write_bytes('{"text": "café"}\n'.encode())
    (tmp_path / "b.jsonl").write_bytes('{"text": "café"}\n'.encode("cp1252"))
    (tmp_path / "c.csv").write_bytes("text\ncafé\n".encode("utf-16"))
    with caplog.at_level(logging.INFO):
        rows = opened([tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.csv")])
    assert [rows[i] for i in range(3)] == [{"text": "café"}] * 3
    assert rows.schema.encodings == {"UTF-8": 1, "Windows-1252": 1, "UTF-16": 1}
    assert "b.jsonl is read as Windows-1252" in caplog.text
    assert "a.jsonl is read" not in caplog.text


def test_a_row_is_read_and_its_file_is_not_mapped(files: list[Path]) -> None:
    rows = opened(files)
    assert rows[19] == ROWS[19]
    held = Path("/proc/self/maps").read_text()
    assert f"{rows.folder}/starts.bin" in held
    assert f"{rows.folder}/rows.jsonl" not in held
    own = f"{rows.folder}/rows.jsonl"
    assert own in open_files()
    del rows
    assert own not in open_files()


def open_files() -> set[str]:
    return {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}


def test_equal_rows_under_equal_names_have_one_key(files: list[Path]) -> None:
    assert opened(files).content_key == opened(files).content_key
    assert opened(files).content_key != opened(files[:1]).content_key
    assert opened(files).content_key != opened(files, label="score").content_key
