"""What a data set's rows hold: columns, the types seen in them, and how many rows could not be read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from drumline.config.problem import shown_name as shown_name
from drumline.errors import DataError

MAX_DISTINCT = 1000
"""A column with more different values than this is not kept as one of classes."""
MAX_COLUMNS = 1000
"""Columns that are kept; records with ever new names are no table."""
_LONGEST_VALUE = 200
"""Characters of a value that may be a class."""
_SHOWN = 20
"""Columns that an error names."""
_TYPES: dict[type, str] = {
    str: "text",
    bool: "true or false",
    int: "whole number",
    float: "number",
    list: "list",
    dict: "object",
    type(None): "null",
}


@dataclass(frozen=True)
class Column:
    """One column over all rows that were read."""

    types: Mapping[str, int]
    """Name of a type -> rows with a value of it; rows without the column count as null."""
    distinct: tuple[Any, ...] | None = None
    """The different values (of lists: of their entries) but null; None where they are too many, or unknown."""
    names: tuple[str, ...] | None = None
    """What the numbers of a column of classes stand for, where the data says so."""

    @property
    def num_nulls(self) -> int:
        """Rows without a value."""
        return self.types.get("null", 0)

    def __str__(self) -> str:
        types = " or ".join(name for name in self.types if name != "null") or "empty"
        notes = [f"{len(self.distinct)} different"] if self.distinct is not None and types != "empty" else []
        notes += [f"{self.num_nulls:,} null"] if self.num_nulls else []
        return f"{types} ({', '.join(notes)})" if notes else types


@dataclass(frozen=True)
class Schema:
    """Columns and rows of one data set."""

    columns: Mapping[str, Column]
    num_rows: int | None
    """Rows that can be read; None: not known, as of a stream."""
    num_bad: int = 0
    """Rows that were left out."""
    bad_rows: tuple[Path, ...] = ()
    """The files that list them."""
    encodings: Mapping[str, int] = field(default_factory=dict)
    """Name of an encoding -> text files that were read in it; empty where there are none, or it is not known."""

    def describe(self) -> str:
        """A line or two for the screen: rows, and each column with its types."""
        rows = "rows as they come" if self.num_rows is None else f"{self.num_rows:,} rows"
        if self.num_bad:
            rows += f", {self.num_bad:,} left out"
            rows += f" ({', '.join(map(str, self.bad_rows))})" if self.bad_rows else ""
        return f"{rows}\n" + "; ".join(f"{shown_name(name)}: {column}" for name, column in self.columns.items())

    def distinct(self, column: str, limit: int = MAX_DISTINCT) -> list[Any] | None:
        """The different values of a column; None where there are more than `limit`, or they are not known."""
        found = self.columns[column].distinct
        return None if found is None or len(found) > limit else list(found)

    def renamed(self, columns: Mapping[str, str]) -> Schema:
        """The same with data.columns applied (wanted name -> the data's own)."""
        return replace(self, columns=renamed(self.columns, columns))

    def require(self, names: Sequence[str], where: str) -> None:
        """Raise DataError, which names the columns there are, unless all these are there, with a value in some row."""
        absent = {name: name for name in names if set(getattr(self.columns.get(name), "types", ())) <= {"null"}}
        if absent:
            raise missing_columns(absent, list(self.columns), where)


def missing_columns(absent: Mapping[str, str], there: Sequence[str], where: str) -> DataError:
    """The error for columns that no row has: wanted name -> what the data was said to call it."""
    name, own = next(iter(absent.items()))
    names = ", ".join(repr(shown_name(column)) for column in there[:_SHOWN]) + (", ..." if len(there) > _SHOWN else "")
    like = get_close_matches(own, there, 1) or [column for column in there if shown_name(column) == column]
    near = like[0] if like else "COLUMN"
    headless = "" if all(shown_name(column) == column for column in there) else "; a table begins with a line of names"
    return DataError(
        f"{where}: no row has a value in column {' or '.join(map(repr, absent.values()))}; the columns are {names}",
        f"say which of them it is: --set data.columns.{name}={near}, for instance{headless}",
    )


def told_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names of classes for metrics and events, by number; one that reads like a text is `class 3`."""
    return tuple(name if shown_name(name) == name else f"class {number}" for number, name in enumerate(names))


def renamed(record: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """A record under the names that data.columns gives (wanted name -> the record's own); others stay."""
    own = set(columns.values())
    result = {name: value for name, value in record.items() if name not in own and name not in columns}
    result.update((name, record[source]) for name, source in columns.items() if source in record)
    return result


def merged(schemas: Sequence[Schema]) -> Schema:
    """The schema of several data sets together."""
    if len(schemas) == 1:
        return schemas[0]
    columns: dict[str, Column] = {}
    for name in dict.fromkeys(name for schema in schemas for name in schema.columns):
        types: Counter[str] = Counter()
        values: dict[str, Any] | None = {}
        for schema in schemas:
            part = schema.columns.get(name, Column({"null": schema.num_rows or 0}, ()))
            types.update(part.types)
            if values is not None:
                values = None if part.distinct is None else values | {_key(value): value for value in part.distinct}
        columns[name] = Column({key: count for key, count in types.items() if count}, _kept(values))
    return Schema(
        columns,
        sum(schema.num_rows or 0 for schema in schemas),
        sum(schema.num_bad for schema in schemas),
        tuple(path for schema in schemas for path in schema.bad_rows),
        dict(sum((Counter(schema.encodings) for schema in schemas), Counter())),
    )


@dataclass
class SchemaCounter:
    """Sees rows and comes to a schema; of each column at most MAX_DISTINCT values are held."""

    num_rows: int = 0
    _types: dict[str, Counter[str]] = field(default_factory=dict)
    _values: dict[str, dict[str, Any] | None] = field(default_factory=dict)

    def add(self, record: Mapping[str, Any]) -> None:
        """Count one row."""
        self.num_rows += 1
        for name, value in record.items():
            if name not in self._types:
                if len(self._types) >= MAX_COLUMNS:
                    continue
                self._types[name], self._values[name] = Counter(), {}
            self._types[name][type_name(value)] += 1
            values = self._values[name]
            if values is not None:
                for item in value if isinstance(value, list) else (value,):
                    if item is not None:
                        self._see(name, values, item)

    def _see(self, name: str, values: dict[str, Any], item: Any) -> None:
        if isinstance(item, list | dict) or (isinstance(item, str) and len(item) > _LONGEST_VALUE):
            self._values[name] = None
            return
        values[_key(item)] = item
        if len(values) > MAX_DISTINCT:
            self._values[name] = None

    def columns(self) -> dict[str, Column]:
        """The columns so far, in the order in which they were first seen."""
        result = {}
        for name, types in self._types.items():
            if missing := self.num_rows - types.total():
                types = types + Counter({"null": missing})
            result[name] = Column(dict(types), _kept(self._values[name]))
        return result


def type_name(value: Any) -> str:
    """What a schema calls the type of a value."""
    return _TYPES.get(type(value), type(value).__name__.lower())


def _key(value: Any) -> str:
    """Tells 1 and true and "1" apart, which Python's sets do not all."""
    return json.dumps(value)


def _kept(values: Mapping[str, Any] | None) -> tuple[Any, ...] | None:
    return None if values is None or len(values) > MAX_DISTINCT else tuple(values.values())
