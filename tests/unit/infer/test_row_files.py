from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from drumline.config.inference import RowsConfig
from drumline.errors import DataError
from drumline.infer.row_files import expand_rows, read_files, sources_of


def values(*files: Path, limit: int | None = None) -> list[dict[str, object]]:
    rows = list(read_files(RowsConfig(files=[str(file) for file in files], limit=limit)))
    assert [row.number for row in rows] == list(range(len(rows)))
    return [dict(row.values) if row.problem is None else {"problem": row.problem} for row in rows]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same two rows in every form."""
    rows = [{"id": 1, "text": "a, b"}, {"id": 2, "text": "ä"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "rows.jsonl").write_text(lines)
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (tmp_path / "rows.csv").write_text('id,text\n1,"a, b"\n2,ä\n', encoding="utf-8")
    (tmp_path / "rows.tsv").write_text("id\ttext\n1\ta, b\n2\tä\n", encoding="utf-8")
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    pa.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    return tmp_path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.tsv", "packed.jsonl.gz", "rows.parquet"])
def test_every_form_gives_the_same_rows(folder: Path, name: str) -> None:
    assert values(folder / name) == [{"id": 1, "text": "a, b"}, {"id": 2, "text": "ä"}]


def test_several_files_follow_each_other_up_to_the_limit(folder: Path) -> None:
    (folder / "torn.jsonl").write_text("{\n")
    found = values(folder / "rows.csv", folder / "torn.jsonl", folder / "rows.json", limit=4)
    assert [row.get("id") for row in found] == [1, 2, None, 1]
    assert str(found[2]["problem"]).startswith("torn.jsonl, line 1: it is not JSON")


def test_a_text_file_has_a_row_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\n\nthree \xc3\xa4")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"four\n"))
    found = values(tmp_path / "a.txt", tmp_path / "b.txt.gz")
    assert [row["text"] for row in found] == ["one", "", "three ä", "four"]


def test_bytes_that_are_no_text_are_left_to_whoever_keeps_the_row(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("gut ä\n".encode() + b"bad \xff\n")
    assert [row["text"] for row in values(tmp_path / "a.txt")] == ["gut ä", "bad \udcff"]


def test_empty_files_have_no_rows(tmp_path: Path) -> None:
    for name in ("a.csv", "a.jsonl", "a.json", "a.txt"):
        (tmp_path / name).touch()
        assert values(tmp_path / name) == []
    (tmp_path / "b.csv").write_text("id,text\n")
    assert values(tmp_path / "b.csv") == []


def test_a_folder_gives_its_files_and_a_pattern_its_matches(tmp_path: Path) -> None:
    for name in ("part_10.jsonl", "part_2.jsonl", ".hidden.jsonl", "notes.md"):
        (tmp_path / name).write_text(json.dumps({"n": name}) + "\n")
    assert [row["n"] for row in values(tmp_path)] == ["part_2.jsonl", "part_10.jsonl"]
    assert [row["n"] for row in values(tmp_path / "part_*.jsonl")] == ["part_2.jsonl", "part_10.jsonl"]
    assert [row["n"] for row in values(tmp_path / "part_10.jsonl", tmp_path / "part_2.jsonl")] == [
        "part_10.jsonl",
        "part_2.jsonl",
    ]


def test_a_folder_of_images_has_a_row_an_image(tmp_path: Path) -> None:
    for name in ("cats/2.png", "cats/10.PNG", "dogs/a.jpg", "top.png", "cats/.x.png", "cats/readme.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"not looked at here")
    assert values(tmp_path) == [
        {"path": str(tmp_path / "cats/2.png"), "label": "cats"},
        {"path": str(tmp_path / "cats/10.PNG"), "label": "cats"},
        {"path": str(tmp_path / "dogs/a.jpg"), "label": "dogs"},
        {"path": str(tmp_path / "top.png")},
    ]
    assert len(sources_of(RowsConfig(files=[str(tmp_path)]))) == 4


def test_what_is_not_there_is_said_with_what_is_near(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    with pytest.raises(DataError, match="there is no file") as caught:
        values(tmp_path / "row.jsonl")
    assert "rows.jsonl" in caught.value.fix
    with pytest.raises(DataError, match="no file matches"):
        values(tmp_path / "*.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="neither rows nor images"):
        values(tmp_path / "empty")
    (tmp_path / "a.xyz").write_text("x")
    with pytest.raises(DataError, match="no ending that says what it is"):
        values(tmp_path / "a.xyz")


def test_a_file_that_is_cut_off_stops_the_run_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"a": 1}, {"a"')
    with pytest.raises(DataError):
        values(tmp_path / "a.json")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 100)[:-9])
    with pytest.raises(DataError, match="damaged"):
        values(tmp_path / "a.jsonl.gz")


def test_a_file_that_changes_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("{}\n")
    config = RowsConfig(files=[str(file)])
    before = sources_of(config)
    assert before == sources_of(config)
    assert [source["path"] for source in before] == [str(file)]
    file.write_text("{} \n")
    assert before != sources_of(config)
    assert expand_rows(config) == [file]
