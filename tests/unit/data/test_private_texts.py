"""What is wrong with data is said without repeating what is in it: no error and no log line holds a text."""

from __future__ import annotations

import gzip
import json
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from drumline.config.data import RecordData, TextData, TextFolders
from drumline.data.features import NumberFeatures, Prepared, TextFeatures, WordFeatures, text_of
from drumline.data.labels import Classes, as_label, as_list, as_numbers, find_classes
from drumline.data.records import load_records
from drumline.data.text import load_text
from drumline.data.text_folders import load_text_folders
from drumline.data.tokenizers import ByteTokenizer
from drumline.errors import DataError

SECRET = "My sister Alma lives at 12 Harbour Street and owes the bank nine thousand"
WORDS = ("sister", "Alma", "Harbour")
BYTES = SECRET.encode()

FILES = {
    "no_json.jsonl": b'{"text": "' + BYTES + b"\n",
    "no_object.jsonl": b'"' + BYTES + b'"\n',
    "escape.jsonl": b'{"text": "\\' + BYTES + b'"}\n',
    "control.jsonl": b'{"text": "' + BYTES + b'\x00"}\n',
    "half.jsonl": b'{"text": "' + BYTES + b'\\ud800"}\n',
    "mixed.jsonl": b'{"text": "\xe9 ' + BYTES + b'\xc3\xa9"}\n',
    "other_column.jsonl": json.dumps({"note": SECRET}).encode(),
    "text_as_name.jsonl": json.dumps({SECRET: 1}).encode(),
    "no_array.json": b'"' + BYTES + b'"',
    "cut_off.json": b'[{"text": "' + BYTES + b'"}, {"text": "' + BYTES,
    "more.json": b'[{"text": "' + BYTES + b'"}] ' + BYTES,
    "one_object.json": b'{\n"text": "' + BYTES + b'"}',
    "no_header.csv": (SECRET + ",1\n").encode() * 2,
    "twice.csv": f"{SECRET},{SECRET}\n1,2\n".encode(),
    "cells.csv": f"text,label\n{SECRET},x,y\n".encode(),
    "quote.csv": f'text,label\n"{SECRET},x\n'.encode(),
    "inner_quote.csv": f'text,label\n"{SECRET}" {SECRET},x\n'.encode(),
    "zero.csv": f"text,label\n{SECRET}\0,x\n".encode(),
    "damaged.jsonl.gz": gzip.compress(BYTES * 1000)[:-9],
    "damaged.parquet": BYTES,
}


def check(action: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> DataError:
    """It fails, and neither the error, nor what it came from, nor the log has a word of the text."""
    with caplog.at_level(logging.DEBUG), pytest.raises(DataError) as caught:
        action()
    told = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert not [word for word in WORDS if word.lower() in told.lower()], told
    return caught.value


@pytest.mark.parametrize("name", FILES)
def test_files_of_rows(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    config = RecordData(train=[str(tmp_path / name)], cache_dir=tmp_path / "cache")
    error = check(lambda: load_records(config, ["text"]), caplog)
    assert name in str(error) or "data.train" in str(error)


def test_a_parquet_column_that_is_no_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = pyarrow.array([BYTES + b"\xff"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
    config = RecordData(train=[str(tmp_path / "a.parquet")], cache_dir=tmp_path / "cache")
    error = check(lambda: load_records(config, ["text"]), caplog)
    assert "UnicodeDecodeError" in error.problem


def test_text_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.txt").write_bytes(BYTES + b"\xe9 \xc3\xa9")
    check(lambda: load_text(TextData(train=[f"{tmp_path}/a.txt"], cache_dir=tmp_path / "cache")), caplog)
    (tmp_path / "set" / "x").mkdir(parents=True)
    (tmp_path / "set" / "x" / "a.txt").write_bytes(BYTES + b"\xe9 \xc3\xa9")
    check(lambda: load_text_folders(TextFolders(train=[f"{tmp_path}/set"])), caplog)


CLASSES = Classes([SECRET, f"not {SECRET}"])
RECORDS: dict[str, Callable[[], Any]] = {
    "label": lambda: CLASSES.number_of(SECRET + "."),
    "list as label": lambda: as_label([SECRET]),
    "no list": lambda: as_list(SECRET),
    "broken list": lambda: as_list(f'["{SECRET}'),
    "number": lambda: as_numbers(SECRET),
    "numbers": lambda: as_numbers([1, SECRET]),
    "too few classes": lambda: find_classes([SECRET, SECRET], "data.train"),
    "mixed labels": lambda: find_classes([SECRET, [SECRET]], "data.train"),
    "text": lambda: text_of({"text": [SECRET]}, "text"),
    "row": lambda: Prepared(
        [{"text": "x", "label": SECRET + "!"}], TextFeatures(ByteTokenizer(), 8, CLASSES.one), "data.train"
    )[0],
    "numbers of a row": lambda: NumberFeatures(("x",), CLASSES.one)({"x": SECRET, "label": SECRET}),
    "tags": lambda: WordFeatures(ByteTokenizer(), 8, CLASSES)({"tokens": SECRET, "tags": SECRET}),
}


@pytest.mark.parametrize("what", RECORDS)
def test_values_of_rows(what: str, caplog: pytest.LogCaptureFixture) -> None:
    check(RECORDS[what], caplog)


def test_the_names_of_classes_are_told_unless_they_read_like_texts() -> None:
    assert "harbour" not in CLASSES.describe().lower()
    assert Classes(["spam", "no spam"]).describe() == "2 classes (no spam, spam)"
