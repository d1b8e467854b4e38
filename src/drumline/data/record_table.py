"""CSV and TSV: a header and rows of cells; a column whose every cell is a number holds numbers."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from drumline.data.record_text import MAX_ROW_CHARS, Numbered, Record, bad, open_text, unclosed
from drumline.data.schema import shown_name
from drumline.errors import DataError

CellTypes = Mapping[str, type]
"""Columns of numbers -> int or float; others hold text."""

_INTEGER = re.compile(r"\s*[-+]?(?:0|[1-9][0-9]{0,999})\s*")
"""Longer ones are text: Python converts no number of more than some thousand digits."""
_FLOAT = re.compile(r"\s*[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\s*")


def read_table(path: Path, cell_types: CellTypes) -> Iterator[Numbered]:
    """Yield the rows of a CSV or TSV file. An empty cell is null; lines without text are no rows.

    Raises DataError for a header that cannot be one, and for a quote that is never closed.
    """
    with open_text(path, newline="") as text, _long_cells():
        lines = _Lines(path, text)
        delimiter = "\t" if ".tsv" in path.suffixes[-2:] else ","
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        header = _header(path, next(reader, []))
        while True:
            lines.of_row.clear()
            number = reader.line_num + 1
            try:
                cells = next(reader, None)
            except csv.Error as error:
                if "unexpected end" in str(error) or "field limit" in str(error):
                    raise unclosed(path, number, "a quote is not closed") from None
                yield bad(number, f"it is not CSV: {error}", "".join(lines.of_row))
                continue
            if cells is None:
                return
            if any("\0" in cell for cell in cells):
                yield bad(number, "it has zero bytes in it", "".join(lines.of_row))
            elif len(cells) == len(header):
                yield Numbered(number, _record(header, cells, cell_types))
            elif cells:
                problem = f"it has {len(cells)} cells, the header has {len(header)}"
                yield bad(number, problem, "".join(lines.of_row))


def find_cell_types(paths: Sequence[Path]) -> dict[str, type]:
    """Which columns of these files hold numbers: those whose every cell that is not empty is one, in all files.

    Whole numbers with leading zeros are text: 007 is no 7.
    """
    types: dict[str, type] = {}
    for path in paths:
        for _, row in read_table(path, {}):
            if not isinstance(row, dict):
                continue
            for name, cell in row.items():
                known = types.get(name, int)
                if cell is not None and known is not str:
                    types[name] = known if known is int and _INTEGER.fullmatch(cell) else _float_or_text(cell)
    return {name: kind for name, kind in types.items() if kind is not str}


def _float_or_text(cell: str) -> type:
    return float if _FLOAT.fullmatch(cell) and math.isfinite(float(cell)) else str


def _record(header: Sequence[str], cells: Sequence[str], types: CellTypes) -> Record:
    record: Record = {}
    for name, cell in zip(header, cells, strict=True):
        kind = types.get(name)
        record[name] = None if not cell else cell if kind is None else kind(cell)
    return record


def _header(path: Path, cells: Sequence[str]) -> list[str]:
    """Names of the columns; one without a name, as pandas writes for its index, is called by its number."""
    names = [cell.strip() or f"column_{number}" for number, cell in enumerate(cells, 1)]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(
            f"{path}:1: the header names {shown_name(twice[0])!r} twice", "give each column a name of its own"
        )
    if any("\udc80" <= character <= "\udcff" for name in names for character in name):
        raise DataError(f"{path}:1: the header is not UTF-8 text", "save the file as UTF-8")
    return names


class _Lines:
    """The lines of a file; `of_row` are those since it was last cleared."""

    def __init__(self, path: Path, text: TextIO) -> None:
        self._path = path
        self._text = text
        self.of_row: list[str] = []
        self._number = 0

    def __iter__(self) -> Iterator[str]:
        while line := self._text.readline(MAX_ROW_CHARS):
            self._number += 1
            if len(line) == MAX_ROW_CHARS:
                raise unclosed(self._path, self._number, f"the line is longer than {MAX_ROW_CHARS:,} characters")
            self.of_row.append(line)
            yield line


@contextmanager
def _long_cells() -> Iterator[None]:
    """The package's limit is 131,072 characters a cell, and one for the whole process."""
    before = csv.field_size_limit(MAX_ROW_CHARS)
    try:
        yield
    finally:
        csv.field_size_limit(before)
