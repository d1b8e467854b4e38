"""The rows of a prediction run, frozen at its start: later they are read one by one, whatever becomes of the files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from drumline.config.inference import RowsConfig
from drumline.errors import ConfigError, DataError
from drumline.infer.frozen_rows import FrozenRows
from drumline.infer.ledger_folder import ROWS_LOCK as ROWS_LOCK
from drumline.infer.ledger_folder import is_there
from drumline.infer.ledger_folder import lock_file as lock_file
from drumline.infer.ledger_folder import make_folders as make_folders
from drumline.infer.locks import Locks
from drumline.infer.records import ERROR, Row
from drumline.infer.row_sources import change_of
from drumline.predictions import PredictionDir
from drumline.rundir import read_json, sync_directory, write_json

MAX_COLUMNS = 10_000
"""Records with ever new names are no table."""
MOST_LEVELS = 200
"""Of values within each other: a row near Python's limit for JSON can be written, and not be read in a deeper call."""
_FLUSH_ROWS = 65536
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class FileRow(Row):
    """A row that says where it stands."""

    where: str = ""
    """As `line 7: `, put before what is wrong with it."""


def prepare_rows(
    directory: PredictionDir, config: RowsConfig, stop: Callable[[], bool] = lambda: False, *, compare: bool = True
) -> None:
    """Freeze the rows of the files, unless another worker has; while one is at it the others wait, until `stop`.

    Raises DataError for files that cannot be read, ids that are absent or not unique, and, with `compare`, where the
    files are no longer those that the run began with. Without, what becomes of them later is nobody's concern.
    """
    from drumline.infer.row_files import read_files, sources_of  # loads torch, with the room of the readers

    were_there = directory.rows_facts.is_file()
    if not freeze_rows(
        directory,
        lambda: read_files(config),
        lambda: {"sources": sources_of(config, with_content=True), "limit": config.limit},
        config.id,
        stop,
    ):
        return
    if not (compare and were_there):
        return
    known = read_json(directory.rows_facts)
    change = None
    if known.get("limit") != config.limit:
        change = f"rows.limit was {known.get('limit')}, and is {config.limit} now"
    if change := change or change_of(known.get("sources", []), sources_of(config)):
        raise DataError(
            f"the data have changed since this run began in {directory.path}: {change}",
            "put the files back as they were, or begin anew with another output file (or remove that directory)",
        )


def freeze_rows(
    directory: PredictionDir,
    source: Callable[[], Iterable[Row]],
    facts: Callable[[], Mapping[str, Any]],
    id_column: str | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Have one of several processes freeze rows as write_rows does, and the others wait; False where `stop` came first.

    `facts` is called before the rows are read. Where rows are frozen already, neither is.
    """
    make_folders(directory)
    if directory.rows_facts.is_file():
        return True
    locks = Locks(lock_file(directory))
    try:
        with locks.held(ROWS_LOCK, stop) as held:
            if held and not is_there(directory.rows_facts):
                found = facts()
                write_rows(directory, source(), found, id_column)
            return held
    finally:
        locks.close()


def rows_of(values: Iterable[Mapping[str, Any] | str]) -> Iterator[Row]:
    """Rows that a program hands over; a text alone is the column `text`. Raises DataError for anything else."""
    for number, value in enumerate(values):
        if not isinstance(value, (str, Mapping)):
            raise DataError(
                f"row {number} is a {type(value).__name__}", "give each row as a text, or as a dict of its columns"
            )
        yield Row(number, {"text": value} if isinstance(value, str) else value)


def write_rows(
    directory: PredictionDir, source: Iterable[Row], facts: Mapping[str, Any], id_column: str | None = None
) -> None:
    """Freeze rows, numbered from 0 in their order; rows.json, which holds `facts` too, says that all are there.

    For one process at a time. Raises DataError where `id_column` is absent in a row, or two rows have the same there.
    """
    make_folders(directory)
    written = _Written(id_column)
    # By rename, so that nobody reads rows that are written anew; one name, as one process at a time is at it.
    begun = [file.with_name(f".{file.name}.tmp") for file in (directory.rows, directory.offsets)]
    try:
        _write_all(written, source, begun[0], begun[1])
        begun[0].replace(directory.rows)
        begun[1].replace(directory.offsets)
    finally:
        for file in begun:
            file.unlink(missing_ok=True)
    sync_directory(directory.ledger)
    if id_column is not None:
        _check_unique(directory, written, id_column)
    found = {"num_rows": written.num_rows, "num_bad": written.num_bad, "columns": list(written.columns)}
    write_json(directory.rows_facts, {**found, "sha256": written.digest.hexdigest(), **facts})


def are_same_rows(directory: PredictionDir, source: Iterable[Row]) -> bool:
    """Whether these are the rows that were frozen; goes through all of them."""
    written = _Written(None)
    for row in source:
        written.add(row)
        del written.starts[:]
    return bool(read_json(directory.rows_facts)["sha256"] == written.digest.hexdigest())


def check_columns(columns: Sequence[str], added: Sequence[str], prefix: str) -> None:
    """Raise ConfigError where a column that is to be added, or `error`, is there already."""
    both = [name for name in (*added, ERROR) if prefix + name in columns]
    if both:
        raise ConfigError(
            f"the rows have a column {prefix + both[0]!r} already, which is to be added",
            f"put something before the names that are added: --set output.prefix={prefix}model_",
        )


class _Written:
    """What is known of the rows so far."""

    def __init__(self, id_column: str | None) -> None:
        self._id_column = id_column
        self.starts = array("q")
        self.ids = array("Q")
        self.id_rows = array("q")
        self.columns: dict[str, None] = {}
        self.num_rows = self.num_bad = self.size = 0
        self.digest = hashlib.sha256()

    def add(self, row: Row) -> bytes:
        """Count a row, and give its line."""
        problem, values = row.problem, row.values
        try:
            line = _line(_kept(values, problem))
        except (TypeError, ValueError, RecursionError) as error:
            problem = problem or (row.where if isinstance(row, FileRow) else "") + _told(error)
            values = _mended(values)
            line = _line(_kept(values, problem))
        self.num_bad += problem is not None
        self._see_columns(values)
        if self._id_column is not None and self._names(row.values, values, self._id_column, is_bad=problem is not None):
            self.ids.append(_id_hash(values[self._id_column]))
            self.id_rows.append(self.num_rows)
        self.starts.append(self.size)
        self.size += len(line)
        self.num_rows += 1
        self.digest.update(line)
        return line

    def flush(self, out: IO[bytes]) -> None:
        if sys.byteorder == "big":
            self.starts.byteswap()
        out.write(self.starts.tobytes())
        del self.starts[:]

    def _see_columns(self, values: Mapping[str, Any]) -> None:
        self.columns.update(dict.fromkeys(values))
        if len(self.columns) > MAX_COLUMNS:
            raise DataError(
                f"the rows have more than {MAX_COLUMNS:,} columns",
                "put what has ever new names into one column, as an object",
            )

    def _names(self, given: Mapping[str, Any], kept: Mapping[str, Any], column: str, *, is_bad: bool) -> bool:
        """Whether a row has an id; a bad row need not, and what was mended names nothing."""
        if kept.get(column) is None and not is_bad:
            raise DataError(
                f"row {self.num_rows} has no {column!r}, by which rows are told",
                "give each row one, or leave rows.id out: then rows are told by their place",
            )
        return kept.get(column) is not None and (given is kept or _is_sound(column, given.get(column)))


def _write_all(written: _Written, source: Iterable[Row], rows: Path, offsets: Path) -> None:
    with rows.open("wb") as lines, offsets.open("wb") as starts:
        for row in source:
            lines.write(written.add(row))
            if len(written.starts) >= _FLUSH_ROWS:
                written.flush(starts)
        written.starts.append(written.size)
        written.flush(starts)
        for file in (lines, starts):
            file.flush()
            os.fsync(file.fileno())


def _check_unique(directory: PredictionDir, written: _Written, id_column: str) -> None:
    hashes = np.frombuffer(written.ids, np.uint64)
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    if not len(same):
        return
    frozen = FrozenRows(directory)
    try:
        for place in same.tolist():
            pair = [written.id_rows[int(order[place + step])] for step in (0, 1)]
            first, second = (row.values[id_column] for row in frozen.read(pair))
            if first == second:
                raise DataError(
                    f"rows {pair[0]} and {pair[1]} (from 0) have the same {id_column!r}: {str(first)[:100]!r}",
                    "give each row one of its own, or leave rows.id out: then rows are told by their place",
                )
    finally:
        frozen.close()


def _id_hash(value: Any) -> int:
    text = json.dumps(value, sort_keys=True, default=_plain)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _kept(values: Mapping[str, Any], problem: str | None) -> dict[str, Any]:
    """A row as it is kept: values, and what is wrong with it, where there are such."""
    return {**({"values": values} if values or not problem else {}), **({"problem": problem} if problem else {})}


def _mended(values: Mapping[str, Any]) -> dict[str, Any]:
    """What of a bad row can be kept: half characters and bytes that are none replaced, what JSON cannot hold left out.

    Thus the row comes out with its id and its other columns, beside what is wrong with it.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        with suppress(TypeError, ValueError, RecursionError):  # left out
            found |= json.loads(_SURROGATE.sub("\ufffd", _text({name: value})))
    return found


def _is_sound(name: str, value: Any) -> bool:
    """Whether a value can be kept as it stands."""
    try:
        _line({name: value})
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _line(value: Mapping[str, Any]) -> bytes:
    return _text(value).encode() + b"\n"


def _text(value: Mapping[str, Any]) -> str:
    """As JSON. Raises RecursionError also for what could be written here, and not be read in a deeper function."""
    text = _encode(value)
    if text.count("[") + text.count("{") > MOST_LEVELS and _is_deep(value):
        raise RecursionError(f"more than {MOST_LEVELS} levels")
    return text


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_LEVELS):
        mappings = [inner for each in level if isinstance(each, Mapping) for inner in each.values()]
        level = mappings + [inner for each in level if isinstance(each, list | tuple) for inner in each]
    return bool(level)


def _told(error: Exception) -> str:
    """What is wrong with a row that cannot be written as JSON in UTF-8."""
    if isinstance(error, RecursionError):
        return f"it is nested too deeply: at most {MOST_LEVELS} levels are taken"
    if not isinstance(error, UnicodeEncodeError):
        return f"it holds what JSON cannot: {error}"
    code = ord(error.object[error.start])
    escaped = 0xDC80 <= code <= 0xDCFF
    return f"it is not UTF-8: byte 0x{code - 0xDC00:02x}" if escaped else f"it has half a character, U+{code:04X}"


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a {type(value).__name__}")


# Made once: to make it takes longer than most rows do.
_encode = json.JSONEncoder(ensure_ascii=False, default=_plain).encode
