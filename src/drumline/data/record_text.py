"""What the readers of record files share: bad rows, and text that is read with its faults."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from drumline.data.files import reading
from drumline.data.text_encoding import UTF_8, WINDOWS, encoding_of, name_of, open_bytes
from drumline.errors import DataError

Record = dict[str, Any]

MAX_ROW_CHARS = 2**26
"""A row with more is taken for one with a missing quote or bracket, and never read whole."""
MAX_RAW_CHARS = 500
"""Of a bad row's text, what is kept."""


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
    """Open a text file, of .gz what is in it, in the encoding that its bytes tell, without a byte order mark.

    Bytes that are no character become surrogates, which no good row holds. Raises DataError where a compressed file or
    one in UTF-16 is damaged, also while it is read.
    """
    with reading(path):
        try:
            codec = encoding_of(path)
            # Half of a pair in UTF-16 passes as such, and is the row's fault; in the others a byte that is none.
            errors = "surrogateescape" if codec in (UTF_8, WINDOWS) else "surrogatepass"
            with io.TextIOWrapper(open_bytes(path), codec, errors=errors, newline=newline) as text:
                yield text
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} begins as {name_of(codec)} and goes on as something else: {error.reason}",
                "fetch the file again, or save it as UTF-8",
            ) from None


def unclosed(path: Path, line: int, what: str) -> DataError:
    """The error for a row without an end: what follows it may be part of it, so no row after it can be trusted."""
    return DataError(
        f"{path}:{line}: {what}, so where its row ends cannot be told",
        f"correct line {line}, or fetch the file again if it is cut off",
    )
