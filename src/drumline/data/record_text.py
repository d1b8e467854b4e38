"""What the readers of record files share: bad rows, and text that is read with its faults."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from drumline.data.files import not_utf8, reading
from drumline.errors import DataError

Record = dict[str, Any]

MAX_ROW_CHARS = 2**26
"""A row with more is taken for one with a missing quote or bracket, and never read whole."""
MAX_RAW_CHARS = 500
"""Of a bad row's text, what is kept."""
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")


class BadRow(NamedTuple):
    """A row that cannot be read; `text` is its beginning."""

    problem: str
    text: str


class Numbered(NamedTuple):
    """A row, good or bad, and the line on which it begins (of Parquet files: the number of the row), from 1."""

    line: int
    row: Record | BadRow


def bad(line: int, problem: str, text: str) -> Numbered:
    """A bad row, its text cut to what is kept."""
    return Numbered(line, BadRow(problem, text.rstrip("\r\n")[:MAX_RAW_CHARS]))


def as_record(line: int, value: Any, text: str) -> Numbered:
    """A row that was read, bad unless it is an object."""
    if isinstance(value, dict):
        return Numbered(line, value)
    return bad(line, f"it is a {type(value).__name__}, not an object with named values", text)


@contextmanager
def open_text(path: Path, newline: str) -> Iterator[TextIO]:
    """Open a text file, of .gz what is in it. Bytes that are not UTF-8 become surrogates, which no good row holds.

    Raises DataError for a file in UTF-16, and where a compressed file is damaged, also while it is read.
    """
    packed = path.suffix.lower() == ".gz"
    with reading(path):
        file: Any = gzip.open(path, "rb") if packed else path.open("rb")  # noqa: SIM115 (closed below)
        try:
            with io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline=newline) as text:
                if (start := file.peek(2)[:2]) in _BYTE_ORDER_MARKS:
                    raise not_utf8(path, 0, start[0])
                yield text
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path} is damaged: {error}", "fetch the file again, or compress it again") from error


def unclosed(path: Path, line: int, what: str) -> DataError:
    """The error for a row without an end: what follows it may be part of it, so no row after it can be trusted."""
    return DataError(
        f"{path}:{line}: {what}, so where its row ends cannot be told",
        f"correct line {line}, or fetch the file again if it is cut off",
    )
