"""Rows of JSON, JSON Lines, CSV and Parquet files, one after the other, by the files' endings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from drumline.data.record_json import read_json, read_json_lines
from drumline.data.record_parquet import read_parquet
from drumline.data.record_table import CellTypes, read_table
from drumline.data.record_text import Numbered
from drumline.errors import DataError

ENDINGS = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
"""What can be read; all but the last also with .gz after it."""


def read_rows(path: Path, cell_types: CellTypes) -> Iterator[Numbered]:
    """Yield every row of a file, good or bad; `cell_types` are those of CSV and TSV files.

    Raises DataError for an unknown ending, and for a file that is damaged as a whole.
    """
    ending = ending_of(path)
    if ending == ".parquet":
        return read_parquet(path)
    if ending == ".json":
        return read_json(path)
    return read_table(path, cell_types) if is_table(path) else read_json_lines(path)


def is_table(path: Path) -> bool:
    """Whether a file is CSV or TSV."""
    return ending_of(path) in (".csv", ".tsv")


def ending_of(path: Path) -> str:
    """The ending that says what a file is. Raises DataError where it says nothing known."""
    endings = [ending.lower() for ending in path.suffixes]
    packed = endings[-1:] == [".gz"]
    ending = endings[-2 if packed else -1] if len(endings) > packed else ""
    if ending not in ENDINGS or (packed and ending == ".parquet"):
        raise DataError(
            f"{path} has no ending that says what it is",
            f"rename it to one that ends in {', '.join(ENDINGS)} (or .gz after one of the text formats)",
        )
    return ending
