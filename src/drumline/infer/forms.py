"""How rows are written: JSON Lines, CSV or Parquet, by the file's ending."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from drumline.errors import ConfigError


class Form(Protocol):
    """Writes rows to a file that is open for bytes."""

    @property
    def looks_first(self) -> bool:
        """Whether it must see all rows before the first is written."""

    def look(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """See some of the rows that will be written."""

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows; a column that one has not is null there. Raises OSError."""

    def close(self) -> None:
        """Write what stands at the end; the file stays open."""


def form_of(path: Path, file: IO[bytes], columns: Sequence[str], kinds: Mapping[str, str] | None = None) -> Form:
    """The form that a file's ending names, for rows with these columns. Raises ConfigError for another ending.

    kinds: of columns in which no value may stand, what else would: vector, texts, integer or number.
    """
    check_ending(path)
    ending = path.suffix.lower()
    if ending == ".parquet":
        from drumline.infer.parquet_form import Parquet

        return Parquet(file, columns, kinds)
    return Csv(file, columns) if ending == ".csv" else JsonLines(file)


def check_ending(path: Path) -> None:
    """Raise ConfigError for a file whose ending names no form."""
    if path.suffix.lower() not in (".jsonl", ".csv", ".parquet"):
        raise ConfigError(
            f"output.file: {path} has no ending that says what to write", "end its name in .jsonl, .csv or .parquet"
        )


class JsonLines:
    """One object a line, with the columns in each row's own order. NaN and infinity, which JSON has not, are null."""

    looks_first = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def look(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Nothing is to be known."""

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows. Raises OSError."""
        self._file.write("".join(as_json(row) + "\n" for row in rows).encode())

    def close(self) -> None:
        """Nothing stands at the end."""


class Csv:
    """A header and a line a row; null is an empty cell, and what is a list or an object is JSON in its cell."""

    looks_first = False

    def __init__(self, file: IO[bytes], columns: Sequence[str]) -> None:
        self._file = file
        self._columns = columns
        self._write_cells([columns])

    def look(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Nothing is to be known."""

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows. Raises OSError."""
        self._write_cells([[_as_cell(row.get(name)) for name in self._columns] for row in rows])

    def close(self) -> None:
        """Nothing stands at the end."""

    def _write_cells(self, table: Sequence[Sequence[str]]) -> None:
        text = io.StringIO(newline="")
        # Older Pythons put a cell with a carriage return into quotes only where lines end in one.
        writer = csv.writer(_Lines(text), lineterminator="\r\n")
        writer.writerows(table)
        self._file.write(text.getvalue().encode(errors="replace"))


class _Lines:
    """Takes lines of CSV that end in both characters, and ends them in one."""

    def __init__(self, text: io.StringIO) -> None:
        self._text = text

    def write(self, line: str) -> None:
        self._text.write(line[:-2])
        self._text.write("\n")


def as_json(value: Any) -> str:
    """A value as JSON in one line that can be encoded as UTF-8."""
    try:
        text = _encode(value)
    except ValueError:
        value = _finite(value)
        text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character, which ASCII has an escape for
        text = json.dumps(value, default=_plain)
    return text


def _as_cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, (bool, list, dict, np.ndarray)):
        return as_json(value)
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"an answer holds a {type(value).__name__}, which JSON has no form for")


# Made once: to make it takes longer than most rows do.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain).encode
