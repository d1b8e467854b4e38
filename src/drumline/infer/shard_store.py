"""Rows of shards, found again by id: in a database on disk, so that memory does not grow with them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

AT_ONCE = 1000
"""Rows that are in memory together."""
MOST_NAMED = 5
"""Ids of a kind that an error names."""
_LARGEST = 2**63 - 1


class Found(NamedTuple):
    """A row of a shard and where it stands."""

    key: str
    shard: int
    line: int
    row: dict[str, Any]


class Ids(NamedTuple):
    """Some ids of a kind, and how many there are."""

    first: list[str]
    total: int


def key_of(value: Any) -> str | None:
    """An id in the form in which CSV and JSON agree: 7, 7.0 and '7' are one; None for what names no row."""
    if isinstance(value, bool) or not isinstance(value, int | float | str) or value == "":
        return None
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else None
    return str(value)


def chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """Lists of AT_ONCE items, the last one shorter."""
    rest = iter(items)
    while some := list(islice(rest, AT_ONCE)):
        yield some


class ShardStore:
    """Add all rows, then ask. As a context it is closed at the end."""

    def __init__(self, file: Path) -> None:
        """file: one that is made, and that the caller removes."""
        self._base = sqlite3.connect(file)
        # Nobody needs it after a crash.
        for setting in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-65536"):
            self._base.execute(f"PRAGMA {setting}")
        self._base.execute("CREATE TABLE rows (key TEXT, number INTEGER, shard INTEGER, line INTEGER, row TEXT)")
        self._base.execute("CREATE TABLE wanted (place INTEGER PRIMARY KEY, key TEXT)")

    def __enter__(self) -> ShardStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._base.close()

    def add(self, rows: Iterable[Found]) -> None:
        """Keep rows of shards. Raises sqlite3.Error where the disk is full."""
        for some in chunks(rows):
            kept = [(each.key, _number(each.key), each.shard, each.line, json.dumps(each.row)) for each in some]
            self._base.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", kept)
        self._base.execute("CREATE INDEX rows_by_key ON rows (key)")

    def want(self, keys: Iterable[str]) -> None:
        """Say which rows there must be, in their order."""
        for some in chunks(keys):
            self._base.executemany("INSERT INTO wanted (key) VALUES (?)", [(key,) for key in some])
        self._base.execute("CREATE INDEX wanted_by_key ON wanted (key)")

    @property
    def count(self) -> int:
        """Rows of all shards."""
        return int(self._one("SELECT COUNT(*) FROM rows"))

    @property
    def has_other_ids(self) -> bool:
        """Whether an id is no whole number."""
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM rows WHERE number IS NULL)"))

    def twice(self, table: str = "rows") -> Ids:
        """Ids that come more than once in `rows` or in `wanted`."""
        return self._ids(f"SELECT key FROM {table} GROUP BY key HAVING COUNT(*) > 1 ORDER BY MIN(rowid)")

    def places_of(self, key: str) -> list[tuple[int, int]]:
        """Shard and line of each row with this id."""
        return list(self._base.execute("SELECT shard, line FROM rows WHERE key = ? ORDER BY shard, line", (key,)))

    def missing(self) -> Ids:
        """Ids that are wanted and that no shard has."""
        absent = "NOT EXISTS (SELECT 1 FROM rows WHERE rows.key = wanted.key)"
        return self._ids(f"SELECT key FROM wanted WHERE {absent} ORDER BY place")

    def unwanted(self) -> Ids:
        """Ids that a shard has and nobody wants."""
        absent = "NOT EXISTS (SELECT 1 FROM wanted WHERE wanted.key = rows.key)"
        return self._ids(f"SELECT key FROM rows WHERE {absent} ORDER BY rowid")

    def gaps(self) -> Ids:
        """Whole numbers between the smallest and the largest that no row has, as '7' and '10 to 12'."""
        query = (
            "SELECT number, following FROM (SELECT number, LEAD(number) OVER (ORDER BY number) AS following FROM "
            "(SELECT DISTINCT number FROM rows)) WHERE following > number + 1 ORDER BY number"
        )
        first: list[str] = []
        count = 0
        for before, after in self._base.execute(query):
            count += after - before - 1
            if len(first) < MOST_NAMED:
                first.append(str(before + 1) if after == before + 2 else f"{before + 1} to {after - 1}")
        return Ids(first, count)

    def bounds(self) -> tuple[int, int]:
        """Smallest and largest whole number."""
        smallest, largest = self._base.execute("SELECT MIN(number), MAX(number) FROM rows").fetchone()
        return int(smallest), int(largest)

    def in_order(self, *, as_wanted: bool) -> Iterator[dict[str, Any]]:
        """Yield all rows: as they are wanted, or by whole number."""
        query = "SELECT row FROM rows ORDER BY number"
        if as_wanted:
            query = "SELECT row FROM wanted JOIN rows ON rows.key = wanted.key ORDER BY place"
        for (text,) in self._base.execute(query):
            yield json.loads(text)

    def _ids(self, query: str) -> Ids:
        first = [key for (key,) in self._base.execute(f"{query} LIMIT {MOST_NAMED}")]
        return Ids(first, int(self._one(f"SELECT COUNT(*) FROM ({query})")))

    def _one(self, query: str) -> Any:
        return self._base.execute(query).fetchone()[0]


def _number(key: str) -> int | None:
    digits = key.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()) or (digits[0] == "0" and key != "0"):
        return None
    return number if abs(number := int(key)) <= _LARGEST else None
