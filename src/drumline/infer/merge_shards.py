"""What `drumline merge` starts: puts rows that were answered in shards together, in order, or says why it cannot."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from drumline.data.record_files import is_table, read_rows
from drumline.data.record_table import find_cell_types
from drumline.data.record_text import BadRow
from drumline.data.schema import shown_name
from drumline.errors import ConfigError, DataError, DrumlineError
from drumline.infer.forms import check_ending, form_of
from drumline.infer.shard_files import shard_files
from drumline.infer.shard_store import MOST_NAMED, Found, Ids, ShardStore, chunks, key_of
from drumline.rundir import remove_unfinished, sync_directory

ID = "id"
"""The column that names a row unless another one is given."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def merge(shards: Sequence[Path], out: Path, id_column: str | None = None, data: Path | None = None) -> dict[str, Any]:
    """Make `out` of the shards' rows; returns how many rows and shards there are, and what is to be told.

    Raises ConfigError where `out` exists or nothing says which rows there must be, DataError that names gaps,
    duplicates, rows that the original has not, and rows that cannot be read. Memory does not grow with the rows.
    """
    check_ending(out)
    if out.exists():
        raise ConfigError(f"{out} exists already", "give a file that does not exist yet")
    files, column = shard_files(shards), id_column or ID
    remove_unfinished(out)
    folder = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    folder.mkdir(parents=True)
    try:
        with ShardStore(folder / "rows.sqlite3") as store:
            columns = _read_shards(store, files, column, as_text=out.suffix.lower() == ".csv")
            if data is not None:
                store.want(_keys(data, column))
                _check_against(store, files, data, column)
            else:
                _check_numbers(store, files, column)
            _write(store, folder / out.name, columns, as_wanted=data is not None)
            notes = [] if data is not None else [_unseen(store, column)]
            count = store.count
        (folder / out.name).replace(out)
        sync_directory(out.parent)
    except sqlite3.Error as error:
        raise DataError(f"the rows cannot be sorted in {out.parent}: {error}", "see whether its disk is full") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"rows": count, "shards": len(files), "notes": notes}


def _read_shards(store: ShardStore, files: Sequence[Path], column: str, *, as_text: bool) -> list[str]:
    """Keep all rows; returns the columns of all shards, in the order in which they are met."""
    tables = [file for file in files if is_table(file)]
    # From CSV to CSV every cell stays as it was written.
    types = {} if as_text and len(tables) == len(files) else find_cell_types(tables)
    columns: dict[str, None] = {}
    of_shards: list[dict[str, None]] = [{} for _ in files]
    bad: list[str] = []
    num_bad = 0

    def rows() -> Iterator[Found]:
        nonlocal num_bad
        for number, file in enumerate(files):
            for line, row in read_rows(file, types):
                problem = row.problem if isinstance(row, BadRow) else half_character(row)
                key = None if isinstance(row, BadRow) or problem else _key(row, column, file)
                if isinstance(row, BadRow) or key is None:
                    num_bad += 1
                    if len(bad) < MOST_NAMED:
                        bad.append(f"{file}:{line}: {problem or f'its {shown_name(column)} names no row'}")
                    continue
                of_shards[number].update(dict.fromkeys(row))
                yield Found(key, number, line, row)

    store.add(rows())
    if num_bad:
        lines = "\n".join(f"  {each}" for each in bad)
        raise DataError(f"{num_bad:,} rows of the shards cannot be used:\n{lines}", "correct these lines")
    for own in of_shards:
        columns.update(own)
    if not columns:
        raise DataError("there is no row in any shard", "check which files were named")
    _check_same_columns(files, of_shards, columns)
    return list(columns)


def half_character(row: Mapping[str, Any]) -> str | None:
    """What is wrong with a row that holds what UTF-8 cannot: half a character, or a byte that was none."""
    found = _SURROGATE.search(json.dumps(row, ensure_ascii=False))
    if found is None:
        return None
    code = ord(found.group())
    return f"it is not UTF-8: byte 0x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else "it has half a character"


def _check_same_columns(files: Sequence[Path], found: Sequence[Mapping[str, None]], all_of: Iterable[str]) -> None:
    """Raise DataError that names a shard without columns that others have: it was made by another task or prefix."""
    for file, own in zip(files, found, strict=True):
        absent = [shown_name(name) for name in all_of if name not in own]
        if own and absent:
            raise DataError(
                f"the shards have not the same columns: no row of {file} has {', '.join(absent[:MOST_NAMED])}",
                "answer that shard again as the others were, or merge those that go together",
            )


def _key(row: Mapping[str, Any], column: str, file: Path) -> str | None:
    if column not in row:
        there = ", ".join(map(shown_name, list(row)[:10]))
        raise ConfigError(
            f"{file} has no column {shown_name(column)!r} that would name its rows; it has {there}",
            "say with --id which column does; without one neither gaps nor duplicates can be seen",
        )
    return key_of(row[column])


def _keys(data: Path, column: str) -> Iterator[str]:
    for line, row in read_rows(data, {}):
        if isinstance(row, BadRow):
            raise DataError(f"{data}:{line}: {row.problem}", "correct the line, or name a column that names rows")
        key = _key(row, column, data)
        if key is None:
            raise DataError(f"{data}:{line}: its {shown_name(column)} names no row", "name another column with --id")
        yield key


def _check_against(store: ShardStore, files: Sequence[Path], data: Path, column: str) -> None:
    if (repeated := store.twice("wanted")).total:
        raise DataError(
            f"{data}: {_many(repeated, column)} more than one row", "name a column with --id that names each row once"
        )
    missing, unwanted = store.missing(), store.unwanted()
    problems = _duplicates(store, files, column)
    if missing.total:
        problems.append(f"{_many(missing, column)} a row of {data}, and no shard has one")
    if unwanted.total:
        problems.append(f"{_many(unwanted, column)} a row of a shard, and {data} has none")
    _refuse(problems)


def _check_numbers(store: ShardStore, files: Sequence[Path], column: str) -> None:
    if store.has_other_ids:
        raise ConfigError(
            f"{column} is no whole number in each row, so nobody can tell which rows are missing, and their order",
            "give the file that was split, with --data ORIGINAL",
        )
    gaps = store.gaps()
    problems = _duplicates(store, files, column)
    if gaps.total:
        smallest, largest = store.bounds()
        problems.append(f"between {smallest} and {largest}, {_many(gaps, column)} no row of any shard")
    _refuse(problems)


def _duplicates(store: ShardStore, files: Sequence[Path], column: str) -> list[str]:
    found = store.twice()
    if not found.total:
        return []
    places = ", ".join(f"{files[shard].name}:{line}" for shard, line in store.places_of(found.first[0])[:MOST_NAMED])
    return [f"{_many(found, column)} more than one row; {found.first[0]} stands in {places}"]


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise DataError(
            "the shards do not make one whole:\n" + "\n".join(f"  {each}" for each in problems),
            "answer the missing rows and give that shard too, and leave out shards whose rows come twice",
        )


def _many(ids: Ids, column: str) -> str:
    """As '3 values of id (100, 101 to 102) name'."""
    shown = [text if len(text) <= 60 else f"{text[:60]}..." for text in ids.first]
    more = "" if ids.total <= MOST_NAMED else ", ..."
    return f"{ids.total:,} value{'s' if ids.total > 1 else ''} of {column} ({', '.join(shown)}{more}) name" + (
        "" if ids.total > 1 else "s"
    )


def _unseen(store: ShardStore, column: str) -> str:
    smallest, largest = store.bounds()
    return (
        f"{column} goes from {smallest} to {largest} without a gap; whether the original has rows before or after, "
        "only --data ORIGINAL would tell"
    )


def _write(store: ShardStore, path: Path, columns: Sequence[str], *, as_wanted: bool) -> None:
    with path.open("wb") as file:
        form = form_of(path, file, columns)
        if form.looks_first:
            for rows in chunks(store.in_order(as_wanted=as_wanted)):
                form.look(rows)
        for rows in chunks(store.in_order(as_wanted=as_wanted)):
            form.write(rows)
        form.close()
        file.flush()
        os.fsync(file.fileno())


def main(arguments: list[str]) -> None:
    """Print the outcome, as JSON, as the last line."""
    given = json.loads(arguments[0])
    try:
        data = None if given["data"] is None else Path(given["data"])
        answer = merge([Path(path) for path in given["shards"]], Path(given["out"]), given["id"], data)
    except DrumlineError as error:
        answer = {"problem": error.problem, "fix": error.fix, "code": error.code}
    except OSError as error:
        answer = {
            "problem": f"{given['out']} cannot be made: {error.strerror}",
            "fix": "name another --out",
            "code": "",
        }
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
