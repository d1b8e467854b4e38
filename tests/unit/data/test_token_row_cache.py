"""Records encoded once into files."""

from __future__ import annotations

import json
import logging
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from drumline.data import token_row_writing
from drumline.data.mixture import Mixture
from drumline.data.token_row_cache import (
    Encoding,
    TokenRows,
    build_token_rows,
    content_key,
    open_token_rows,
    token_rows,
)
from drumline.data.token_rows import Learned
from drumline.errors import DataError

RECORDS = [{"text": "abcdefghijklmnop"[: i % 11], "secret": "wxyz"} for i in range(40)]


class Counting:
    """Encodes letters as their codes, learns vowels, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, record: Mapping[str, Any]) -> list[tuple[NDArray[Any], Learned]]:
        self.calls += 1
        text = record["text"]
        if "j" in text:
            raise DataError("a letter is unknown", "leave it out")
        ids = np.array([ord(letter) for letter in text], dtype=np.int64)
        return [(ids, np.array([letter in "aeiou" for letter in text], dtype=np.bool_))]


def encoding(folder: Path, encode: Any = None, **changes: Any) -> Encoding:
    settings = {"key": ["letters"], "vocab_size": 200, "context": 8, "cache_dir": folder, "max_bad_fraction": 0.5}
    return Encoding(encode or Counting(), **{**settings, **changes})


def test_rows_are_what_was_encoded(tmp_path: Path) -> None:
    rows = token_rows(RECORDS, encoding(tmp_path), "data.train")
    good = [record["text"] for record in RECORDS if "j" not in record["text"]]
    assert len(rows) == len(good)
    for number, text in enumerate(good):
        ids, learned = rows.tokens(number)
        assert "".join(map(chr, ids)) == text[:8]
        assert learned.tolist() == [letter in "aeiou" for letter in text[:8]]
    assert rows.lengths.tolist() == [min(8, len(text)) for text in good]
    assert rows.num_cut == sum(len(text) > 8 for text in good)
    assert rows.counts.num_cut_tokens == sum(max(0, len(text) - 8) for text in good)
    assert rows.counts.num_learned == sum(sum(letter in "aeiou" for letter in text[:8]) for text in good)
    assert rows[4]["input_ids"].tolist() == [97, 98, 99, 100]
    assert rows[5]["labels"].tolist() == [-100, -100, -100, 101, -100]
    with pytest.raises(IndexError, match=f"row {len(good)} of {len(good)}"):
        rows[len(good)]


def test_rows_are_encoded_once_for_one_content_and_one_key(tmp_path: Path) -> None:
    encode = Counting()
    token_rows(RECORDS, encoding(tmp_path, encode), "data.train")
    token_rows(list(RECORDS), encoding(tmp_path, encode), "data.train")
    assert encode.calls == 40
    for changed in (
        encoding(tmp_path, encode, key=["others"]),
        encoding(tmp_path, encode, context=9),
    ):
        token_rows(RECORDS, changed, "data.train")
    token_rows([*RECORDS[:-1], {"text": "a", "secret": ""}], encoding(tmp_path, encode), "data.train")
    assert encode.calls == 160
    assert len(list(tmp_path.glob("*.tokens"))) == 4


def test_a_name_of_their_own_stands_for_the_content() -> None:
    class Named(list[Any]):
        content_key = "v1"

    assert content_key(Named([1])) == content_key(Named([2])) == "v1"
    assert content_key([{"a": 1}]) != content_key([{"a": 2}])


@pytest.mark.parametrize(("vocab_size", "id_bytes"), [(2**16, 2), (2**16 + 1, 4)])
def test_ids_take_as_little_room_as_they_can(tmp_path: Path, vocab_size: int, id_bytes: int) -> None:
    def encode(record: Mapping[str, Any]) -> list[tuple[NDArray[Any], Learned]]:
        return [(np.array([0, vocab_size - 1]), np.ones(2, dtype=np.bool_))]

    rows = token_rows([{}], encoding(tmp_path, encode, vocab_size=vocab_size), "data.train")
    assert rows.tokens(0)[0].tolist() == [0, vocab_size - 1]
    assert (rows.folder / "ids.bin").stat().st_size == 2 * id_bytes


def test_an_id_out_of_range_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="ids 97 to 104, its vocab_size is 100"):
        token_rows(RECORDS, encoding(tmp_path, vocab_size=100), "data.train")
    assert list(tmp_path.iterdir()) == []


def test_bad_rows_are_listed_without_their_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "drumline"):
        rows = token_rows(RECORDS, encoding(tmp_path), "data.train")
    assert "3 of 40 rows cannot be encoded; the first is row 10: a letter is unknown" in caplog.text
    listed = [json.loads(line) for line in (rows.folder / "bad_rows.jsonl").read_text().splitlines()]
    assert [row["row"] for row in listed] == [10, 21, 32]
    assert not any("wxyz" in path.read_text("latin-1") for path in rows.folder.iterdir())
    assert "wxyz" not in caplog.text


@pytest.mark.parametrize("fraction", [0.0, 3 / 40])
def test_too_many_bad_rows_are_refused(tmp_path: Path, fraction: float) -> None:
    with pytest.raises(DataError, match=r"data\.eval: 3 of 40 rows cannot be encoded"):
        token_rows(RECORDS, encoding(tmp_path, max_bad_fraction=fraction), "data.eval")


def test_no_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.train has no row"):
        token_rows([], encoding(tmp_path), "data.train")


def test_rows_that_cannot_be_read_are_bad_rows(tmp_path: Path) -> None:
    class Files(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            if index == 2:
                raise DataError("2.txt is not UTF-8 text", "convert it")
            return super().__getitem__(index)

        def __getitems__(self, indexes: list[int]) -> list[Any]:
            return [self[index] for index in indexes]

    files = Files({"text": "ab"} for _ in range(4))
    build_token_rows(files, encoding(tmp_path), tmp_path / "key.tokens", "data.train")
    counts = open_token_rows(tmp_path / "key.tokens").counts
    assert (counts.num_rows, counts.num_bad, counts.num_tokens) == (3, 1, 6)


def test_damaged_files_are_built_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    encode = Counting()
    rows = token_rows(RECORDS, encoding(tmp_path, encode), "data.train")
    os.truncate(rows.folder / "ids.bin", 3)
    with pytest.raises(DataError, match="not those that their header describes"):
        open_token_rows(rows.folder)
    again = token_rows(RECORDS, encoding(tmp_path, encode), "data.train")
    assert encode.calls == 80
    assert again.tokens(7)[0].tolist() == list(range(97, 104))
    assert "it is built anew" in caplog.text
    assert not list(tmp_path.glob(".*"))


def test_rows_are_pickled_by_path(tmp_path: Path) -> None:
    rows = token_rows(RECORDS, encoding(tmp_path), "data.train")
    rows[3]
    pickled = pickle.dumps(rows)
    assert len(pickled) < 1000
    again: TokenRows = pickle.loads(pickled)
    assert again[3]["input_ids"].tolist() == rows[3]["input_ids"].tolist()


def test_parts_of_a_mixture_are_kept_apart(tmp_path: Path) -> None:
    mixture = Mixture([(RECORDS[:9], 1.0), (RECORDS[:4], 3.0)])  # type: ignore[list-item]
    rows = token_rows(mixture, encoding(tmp_path), "data.train")
    assert isinstance(rows, Mixture)
    assert rows.weights == (1.0, 3.0)
    assert [len(part) for part in rows.parts] == [9, 4]
    assert rows.rows_per_epoch == 21


def test_ranks_build_once(tmp_path: Path) -> None:
    written: list[Path] = []

    def build(write: Callable[[], None]) -> None:
        assert not list(tmp_path.iterdir())
        write()
        written.extend(tmp_path.iterdir())

    rows = token_rows(RECORDS, encoding(tmp_path), "data.train", build)
    assert written == [rows.folder]
    assert len(rows) == 37


@pytest.fixture
def many_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(token_row_writing, "WORTH_A_PROCESS", 10)
    monkeypatch.setattr(token_row_writing, "PIECE", 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    yield


@pytest.mark.usefixtures("many_processes")
def test_several_processes_give_the_same_files(tmp_path: Path) -> None:
    here = os.getpid()

    def encode(record: Mapping[str, Any]) -> list[tuple[NDArray[Any], Learned]]:
        ((ids, learned),) = Counting()(record)
        return [(np.append(ids, int(os.getpid() == here)), np.append(learned, True))]

    build_token_rows(RECORDS, encoding(tmp_path), tmp_path / "several.tokens", "data.train")
    build_token_rows(RECORDS, encoding(tmp_path, encode), tmp_path / "processes.tokens", "data.train")
    last = {int(open_token_rows(tmp_path / "processes.tokens").tokens(row)[0][-1]) for row in (0, 5)}
    assert last == {0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_row_writing, "WORTH_A_PROCESS", 1000)
        build_token_rows(RECORDS, encoding(tmp_path), tmp_path / "one.tokens", "data.train")
    for name in ("ids.bin", "learned.bin", "starts.bin", "bad_rows.jsonl"):
        assert (tmp_path / "several.tokens" / name).read_bytes() == (tmp_path / "one.tokens" / name).read_bytes()
