"""Shards that make one whole and those that do not; ids across formats; which files of a folder count."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from drumline.errors import ConfigError, DataError
from drumline.infer.merge_shards import merge
from drumline.infer.shard_files import shard_files
from drumline.infer.shard_store import key_of


def lines(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def numbered(path: Path, ids: Sequence[Any]) -> Path:
    return lines(path, [{"id": each, "answer": f"a{each}"} for each in ids])


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    shards = [numbered(tmp_path / "a.jsonl", [12, 10, 2]), numbered(tmp_path / "b.jsonl", range(3, 10))]
    shards.append(numbered(tmp_path / "c.jsonl", [11]))
    found = merge(shards, tmp_path / "out.jsonl")
    assert [row["id"] for row in read(tmp_path / "out.jsonl")] == list(range(2, 13))
    assert (found["rows"], found["shards"]) == (11, 3)
    assert "id goes from 2 to 12 without a gap" in found["notes"][0]


def test_the_original_decides_order_and_any_text_may_be_an_id(tmp_path: Path) -> None:
    original = lines(tmp_path / "in.jsonl", [{"id": each} for each in ("b", 7, "a", "007")])
    (tmp_path / "x.csv").write_text('id,answer\n7,"seven, it is"\na,\n')
    shards = [tmp_path / "x.csv", numbered(tmp_path / "y.jsonl", ["007", "b"])]
    assert merge(shards, tmp_path / "out.jsonl", data=original)["notes"] == []
    wanted = [("b", "ab"), ("7", "seven, it is"), ("a", None), ("007", "a007")]
    assert [(str(row["id"]), row["answer"]) for row in read(tmp_path / "out.jsonl")] == wanted


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        ([[0, 1, 2], [2, 3]], "1 value of id (2) names more than one row; 2 stands in 0.jsonl:3, 1.jsonl:1"),
        ([[0, 1, 2], [4, 9]], "between 0 and 9, 5 values of id (3, 5 to 8) name no row of any shard"),
        ([[0, 0, 0, 0]], "1 value of id (0) names more than one row"),
        ([list(range(0, 40, 2))], "19 values of id (1, 3, 5, 7, 9, ...) name no row"),
        ([[1, None]], "1 rows of the shards cannot be used"),
        ([[1, True]], "its id names no row"),
    ],
)
def test_gaps_and_duplicates_are_named(tmp_path: Path, ids: list[list[Any]], problem: str) -> None:
    shards = [numbered(tmp_path / f"{number}.jsonl", each) for number, each in enumerate(ids)]
    with pytest.raises(DataError) as caught:
        merge(shards, tmp_path / "out.jsonl")
    assert problem in str(caught.value)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(each.name for each in shards)


def test_all_that_is_wrong_beside_the_original_is_told_at_once(tmp_path: Path) -> None:
    original = numbered(tmp_path / "in.jsonl", range(6))
    with pytest.raises(DataError) as caught:
        merge([numbered(tmp_path / "a.jsonl", [0, 1, 1, 3, 8])], tmp_path / "out.csv", data=original)
    text = str(caught.value)
    assert "1 value of id (1) names more than one row" in text
    assert "3 values of id (2, 4, 5) name a row of" in text
    assert "1 value of id (8) names a row of a shard" in text


def test_shards_of_other_columns_and_half_characters_are_refused(tmp_path: Path) -> None:
    shards = [numbered(tmp_path / "a.jsonl", [0, 1]), lines(tmp_path / "b.jsonl", [{"id": 2, "label": "x"}])]
    with pytest.raises(DataError, match=r"no row of .*a\.jsonl has label"):
        merge(shards, tmp_path / "out.csv")
    lines(tmp_path / "b.jsonl", [{"id": 2, "answer": "\ud800"}])
    with pytest.raises(DataError, match=r"b\.jsonl:1: it has half a character"):
        merge(shards, tmp_path / "out.csv")
    (tmp_path / "b.jsonl").write_bytes(b'{"id": 2, "answer": "\xff"}\n')
    with pytest.raises(DataError, match=r"b\.jsonl:1: it is not UTF-8: byte 0xff"):
        merge(shards, tmp_path / "out.csv")
    (tmp_path / "b.jsonl").write_text("")
    assert merge(shards, tmp_path / "out.csv")["rows"] == 2


def test_what_cannot_be_told_is_refused_with_the_fix(tmp_path: Path) -> None:
    words = numbered(tmp_path / "a.jsonl", ["x", "y"])
    with pytest.raises(ConfigError, match=r"--data ORIGINAL"):
        merge([words], tmp_path / "out.jsonl")
    with pytest.raises(ConfigError, match=r"no column 'key'.*it has id, answer"):
        merge([words], tmp_path / "out.jsonl", "key")
    with pytest.raises(DataError, match="1 value of id \\(x\\) names more than one row\n  fix: name a column"):
        merge([words], tmp_path / "out.jsonl", data=numbered(tmp_path / "in.jsonl", ["x", "x", "y"]))
    with pytest.raises(ConfigError, match="exists already"):
        merge([words], words)
    with pytest.raises(ConfigError, match="no ending"):
        merge([words], tmp_path / "out")
    (tmp_path / "bad.jsonl").write_text('{"id": 1}\n{"id": \n')
    with pytest.raises(DataError, match=r"bad\.jsonl:2: it is not JSON"):
        merge([tmp_path / "bad.jsonl"], tmp_path / "out.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DataError, match="no row in any shard"):
        merge([tmp_path / "empty.jsonl"], tmp_path / "out.jsonl")


def test_numbers_of_tables_become_numbers_and_cells_stay_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,p\n1,0.50\n")
    (tmp_path / "b.csv").write_text("id,p\n0,\n")
    shards = [tmp_path / "a.csv", tmp_path / "b.csv"]
    merge(shards, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "id,p\n0,\n1,0.50\n"
    merge(shards, tmp_path / "out.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert table.to_pylist() == [{"id": 0, "p": None}, {"id": 1, "p": 0.5}]
    merge([tmp_path / "out.parquet"], tmp_path / "again.jsonl")
    assert read(tmp_path / "again.jsonl") == table.to_pylist()


def test_an_id_is_the_same_in_every_format() -> None:
    assert [key_of(value) for value in (7, 7.0, "7", "007", -1)] == ["7", "7", "7", "007", "-1"]
    assert [key_of(value) for value in (None, "", True, 0.5, [1], float("nan"))] == [None] * 6


def test_of_a_folder_of_workers_the_newest_runs_count(tmp_path: Path) -> None:
    for name in ("gpu0/run_9", "gpu0/run_10", "gpu10/run_1", "gpu2/run_1", "merged"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "strategy_a.csv").touch()
    wanted = ["gpu0/run_10", "gpu2/run_1", "gpu10/run_1"]
    assert shard_files([tmp_path]) == [tmp_path / name / "strategy_a.csv" for name in wanted]
    assert shard_files([tmp_path / "gpu0"]) == [tmp_path / "gpu0/run_10/strategy_a.csv"]
    with pytest.raises(ConfigError, match="given twice"):
        shard_files([tmp_path, tmp_path / "gpu2"])
    (tmp_path / "gpu2/run_2").mkdir()
    with pytest.raises(DataError, match=r"run_2, the newest run there, holds no strategy_"):
        shard_files([tmp_path])
    (tmp_path / "gpu2/run_2").rmdir()
    (tmp_path / "gpu11").mkdir()
    with pytest.raises(DataError, match=r"gpu11 holds no run_"):
        shard_files([tmp_path / "gpu0", tmp_path])


def test_of_a_folder_of_files_each_is_a_shard_in_natural_order(tmp_path: Path) -> None:
    for name in ("p10.jsonl", "p9.csv", ".hidden.csv", "readme.md"):
        (tmp_path / name).touch()
    assert [path.name for path in shard_files([tmp_path])] == ["p9.csv", "p10.jsonl"]
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match="holds no shards"):
        shard_files([tmp_path / "other"])
    with pytest.raises(ConfigError, match="there is no shard"):
        shard_files([tmp_path / "absent.csv"])
