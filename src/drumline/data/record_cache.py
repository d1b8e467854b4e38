"""Record files read once into a form that is quick to read at any row, keyed by their content and the columns needed.

One folder: rows.jsonl, the good rows as JSON, a line each; starts.bin, where each row begins and where the last one
ends (little-endian int64); bad_rows.jsonl, what was left out and why; header.json. It is renamed into its place when
all of it is written, so that it is there whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import secrets
import shutil
import sys
import weakref
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from drumline.data.cache_folder import cannot_write, remove_stale
from drumline.data.files import file_digest
from drumline.data.record_files import ending_of, is_table, read_rows
from drumline.data.record_table import find_cell_types
from drumline.data.record_text import MAX_RAW_CHARS, BadRow, Record
from drumline.data.schema import MAX_COLUMNS, Column, Schema, SchemaCounter, renamed
from drumline.data.text_encoding import UTF_8, encoding_of, name_of
from drumline.errors import DataError
from drumline.rundir import sync_directory

FORMAT = 2
_BUFFERED_STARTS = 2**16
_REBUILD = "remove it, or start the run again: it is built anew"
_log = logging.getLogger(__name__)


class RecordRows(Dataset[Record]):
    """The rows of one cache, read where they are asked for; pickled by path, so that a loader's worker maps it again.

    A row is a dict of named values, under the names that data.columns gives.
    """

    def __init__(self, folder: Path, schema: Schema, columns: Mapping[str, str]) -> None:
        self.folder = folder
        self.schema = schema.renamed(columns)
        self._columns = dict(columns)
        self._opened: tuple[int, NDArray[Any]] | None = None

    def __len__(self) -> int:
        return self.schema.num_rows or 0

    @property
    def content_key(self) -> str:
        """Equal for equal rows: what the cache's own key stands for, and the names of the columns."""
        return f"{self.folder.stem} {sorted(self._columns.items())}"

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each row in the cache, [rows]."""
        return np.diff(np.fromfile(self.folder / "starts.bin", "<i8"))

    def __getitem__(self, index: int) -> Record:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        if self._opened is None:
            rows = os.open(self.folder / "rows.jsonl", os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, rows)
            # A plain array over the map: slicing a numpy.memmap object costs several times as much.
            self._opened = rows, np.asarray(np.memmap(self.folder / "starts.bin", "<i8", mode="r"))
        rows, starts = self._opened
        start, end = int(starts[index]), int(starts[index + 1])
        # Read, not mapped: pages of a map that were looked at once count as this process's memory. It needs no
        # position, so that processes forked from this one can read by the same handle.
        record = json.loads(os.pread(rows, end - start, start))
        return renamed(record, self._columns) if self._columns else record

    def __getitems__(self, indexes: Sequence[int]) -> list[Record]:
        """Read several rows."""
        return [self[index] for index in indexes]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


@dataclass
class Found:
    """What a cache's header holds."""

    key: str
    columns: dict[str, Column] = field(default_factory=dict)
    num_rows: int = 0
    num_bytes: int = 0
    num_bad: int = 0
    first_bad: tuple[int, int, str] | None = None
    """Number of the file, line, and problem of the first bad row."""
    seen: dict[str, int] = field(default_factory=dict)
    """Every column of the rows that are objects, bad ones too -> rows that have a value in it."""
    encodings: dict[str, int] = field(default_factory=dict)
    """Name of an encoding -> text files that are in it."""


def records_folder(files: Sequence[Path], required: Sequence[str], cache_dir: Path) -> Path:
    """Give the folder in which these files, in this order, are cached for these columns; reads every file."""
    key = hashlib.sha256(f"drumline records {FORMAT} {json.dumps(sorted(required))}".encode())
    for file in files:
        key.update(ending_of(file).encode())
        key.update(file_digest(file))
    return cache_dir / f"{key.hexdigest()}.records"


def build_records(files: Sequence[Path], required: Sequence[str], folder: Path) -> None:
    """Read the files into `folder`, which `records_folder` gave; nothing is done where a valid cache is there.

    Rows stream through, whatever the files' size. Bad is a row that cannot be read, or that has no value in a required
    column. Safe beside another process that builds the same. Raises DataError for a file that is damaged as a whole,
    for files that change meanwhile, or a folder that cannot be written.
    """
    remove_stale(folder.parent)
    if _is_valid(folder):
        return
    _log.info("reading %d files into %s", len(files), folder)
    # The name is unique among hosts that share the folder; a process number would not be.
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir(mode=0o700)  # texts, for their owner only
        found = _write(files, required, temporary, folder.stem)
        if records_folder(files, required, folder.parent) != folder:
            raise DataError("the files changed while they were read", "start again when they are complete")
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)  # one that is damaged, see above
        temporary.rename(folder)
        sync_directory(folder.parent)
    except OSError as error:
        if not _is_valid(folder):  # else another process was quicker
            raise cannot_write("rows", folder.parent, files, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _log.info("read %d rows", found.num_rows)


def open_records(folder: Path, columns: Mapping[str, str]) -> tuple[RecordRows, Found]:
    """Map a cache that `build_records` wrote. Raises DataError where it is absent, damaged or truncated."""
    try:
        header = json.loads((folder / "header.json").read_bytes())
        sizes = [(folder / name).stat().st_size for name in ("rows.jsonl", "starts.bin")]
        listed = {name: Column(**values) for name, values in header.pop("columns").items()}
        found = Found(**header, columns={name: _as_tuples(column) for name, column in listed.items()})
        complete = sizes == [found.num_bytes, 8 * (found.num_rows + 1)] and found.key == folder.stem
    except OSError as error:
        raise DataError(f"there are no rows at {folder}: {error.strerror}", _REBUILD) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"the header in {folder} is damaged: {error!r}", _REBUILD) from error
    if not complete:
        raise DataError(f"the files in {folder} are not those that their header describes", _REBUILD)
    bad_rows = (folder / "bad_rows.jsonl",) if found.num_bad else ()
    schema = Schema(found.columns, found.num_rows, found.num_bad, bad_rows, found.encodings)
    # Absolute: the files are mapped at first use, and again in loader processes, wherever the process then is.
    return RecordRows(folder.absolute(), schema, columns), found


def _write(files: Sequence[Path], required: Sequence[str], folder: Path, key: str) -> Found:
    found, counter, starts = Found(key), SchemaCounter(), array("q", [0])
    with ExitStack() as stack:
        rows, bad, ends = (
            stack.enter_context((folder / name).open("xb")) for name in ("rows.jsonl", "bad_rows.jsonl", "starts.bin")
        )
        for number, line, row in _rows(files, found.encodings):
            encoded = _encoded(row, required, found.seen)
            if isinstance(encoded, BadRow):
                found.first_bad = found.first_bad or (number, line, encoded.problem)
                found.num_bad += 1
                listed = {"file": str(files[number]), "line": line, **encoded._asdict()}
                bad.write(json.dumps(listed).encode() + b"\n")
                continue
            assert isinstance(row, dict)
            counter.add(row)
            rows.write(encoded)
            found.num_bytes += len(encoded)
            starts.append(found.num_bytes)
            if len(starts) >= _BUFFERED_STARTS:
                _flush(starts, ends)
        _flush(starts, ends)
        found.columns, found.num_rows = counter.columns(), counter.num_rows
        header = stack.enter_context((folder / "header.json").open("xb"))
        header.write(json.dumps(asdict(found)).encode())
        for file in (rows, bad, ends, header):
            file.flush()
            os.fsync(file.fileno())
    return found


def _rows(files: Sequence[Path], encodings: dict[str, int]) -> Iterator[tuple[int, int, Record | BadRow]]:
    """Every row with the number of its file and its line; `encodings` is counted up."""
    cell_types = find_cell_types([file for file in files if is_table(file)])
    for number, file in enumerate(files):
        for line, row in read_rows(file, cell_types):
            yield number, line, row
        if ending_of(file) != ".parquet":
            codec = encoding_of(file)
            encodings[name_of(codec)] = encodings.get(name_of(codec), 0) + 1
            if codec != UTF_8:
                _log.info("%s is read as %s, by its bytes", file, name_of(codec))


def _encoded(row: Record | BadRow, required: Sequence[str], seen: dict[str, int]) -> bytes | BadRow:
    """A row as a line of the cache, or what is wrong with it; `seen` is counted up."""
    if isinstance(row, BadRow):
        return row
    for name, value in row.items():
        if name in seen or len(seen) < MAX_COLUMNS:
            seen[name] = seen.get(name, 0) + (value is not None)
    try:
        problem = next(filter(None, (_missing(row, name) for name in required)), None)
        line = json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        escaped = 0xDC80 <= code <= 0xDCFF
        problem = (
            f"it is not UTF-8: byte 0x{code - 0xDC00:02x}" if escaped else f"it has half a character, U+{code:04X}"
        )
    except (TypeError, RecursionError) as error:
        problem = f"it holds what JSON cannot: {error}"
    return line if problem is None else BadRow(problem, _shown(row))


def _missing(row: Record, name: str) -> str | None:
    value = row.get(name)
    if value is None:
        return f"{name} is {'null' if name in row else 'missing'}"
    return f"{name} is {value}" if isinstance(value, float) and not math.isfinite(value) else None


def _shown(row: Record) -> str:
    try:
        return json.dumps(row, default=str, ensure_ascii=False)[:MAX_RAW_CHARS]
    except RecursionError:
        return ""


def _flush(starts: array[int], out: IO[bytes]) -> None:
    if sys.byteorder == "big":
        starts.byteswap()
    out.write(starts.tobytes())
    del starts[:]


def _as_tuples(column: Column) -> Column:
    return Column(column.types, None if column.distinct is None else tuple(column.distinct))


def _is_valid(folder: Path) -> bool:
    try:
        open_records(folder, {})
    except DataError as error:
        if folder.exists():
            _log.warning("%s; it is built anew", error.problem)
        return False
    return True
