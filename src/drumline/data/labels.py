"""Labels as numbers: the classes of a data set, several classes a row, and numbers to predict."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from drumline.data.schema import shown_name
from drumline.errors import DataError

Label = str | int | float
"""A class as the data writes it; true and false are the classes "true" and "false"."""

MAX_CLASSES = 100_000
"""More distinct labels than this are no classes but a column of numbers or texts."""
_SHOWN = 5


class Classes:
    """The classes of a data set, each with its number: sorted, numbers as numbers."""

    def __init__(self, labels: Iterable[Label], names: Sequence[str] | None = None) -> None:
        found = set(labels)
        self.labels: tuple[Label, ...] = tuple(sorted(found, key=_order(found)))
        self.names = tuple(map(str, self.labels)) if names is None else tuple(names)
        """How each class is called, by number; given where the data holds numbers and names them elsewhere."""
        self._numbers = {label: number for number, label in enumerate(self.labels)}

    def __len__(self) -> int:
        return len(self.labels)

    def number_of(self, value: Any) -> int:
        """The number of a row's label. Raises DataError for what is no label, or is none of the classes."""
        number = self._numbers.get(as_label(value))
        if number is None:
            raise DataError(
                f"the label {_told(value)} is none of the {len(self)} classes of the training data "
                f"({shown([shown_name(name) for name in self.names])})",
                "correct it, or give the training data rows of that class",
            )
        return number

    def has(self, value: Any) -> bool:
        """Whether this is the label of one of the classes."""
        try:
            return as_label(value) in self._numbers
        except DataError:
            return False

    def one(self, value: Any) -> Tensor:
        """The number of a row's label, int64 []."""
        return torch.tensor(self.number_of(value))

    def numbers_of(self, values: Any) -> Tensor:
        """The numbers of a list of labels, int64 [labels]."""
        return torch.tensor([self.number_of(value) for value in as_list(values)], dtype=torch.int64)

    def many_hot(self, values: Any) -> Tensor:
        """1.0 for each class that is in the list and 0.0 for the others, float32 [classes]."""
        hot = torch.zeros(len(self))
        hot[self.numbers_of(values)] = 1.0
        return hot

    def describe(self) -> str:
        """Their number and a few names."""
        return f"{len(self)} classes ({shown([shown_name(name) for name in self.names])})"


def find_classes(values: Iterable[Any], where: str, *, lists: bool = False) -> Classes:
    """Collect the classes of a column, or of a column of lists of them; `where` is what errors call the column.

    Raises DataError for labels that cannot be classes, naming the row, and for a column with fewer than two classes.
    """
    found: set[Label] = set()
    for row, value in enumerate(values):
        try:
            found.update(map(as_label, as_list(value)) if lists else (as_label(value),))
        except DataError as error:
            raise DataError(f"{where}, row {row}: {error.problem}", error.fix) from None
        if len(found) > MAX_CLASSES:
            raise DataError(
                f"{where} has more than {MAX_CLASSES:,} different labels in its first {row + 1:,} rows",
                "name the column that holds the class in data.columns, as {label: topic}, or set task.kind=regression",
            )
    if len(found) < 2 and not lists:
        raise DataError(f"{where} has {len(found)} classes, so there is nothing to tell apart", "name another column")
    if not found:
        raise DataError(f"{where} holds only empty lists", "name the column that holds the classes of each row")
    return Classes(found)


def as_label(value: Any) -> Label:
    """One label. Raises DataError for a missing one, a list, and a number that is not whole."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) or (isinstance(value, str) and value):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)  # a column of whole numbers with a gap in it is read as floats
    fix = "correct the row, or name another column in data.columns"
    if isinstance(value, float) and math.isfinite(value):
        fix = "to predict numbers, set task.kind=regression"
    if isinstance(value, list):
        fix = "for several classes a row, set task.kind=multi_label; for one a word, token_classification"
    raise DataError(f"the label {_told(value)} is no class", fix)


def as_list(value: Any) -> list[Any]:
    """A row's list, also where it stands as JSON text in a cell. Raises DataError for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError):  # reported below as what it is
            value = json.loads(value)
    if not isinstance(value, list | tuple):
        raise DataError(f"{_kind(value)} is no list", 'write a list, such as ["a", "b"]; [] is allowed')
    return list(value)


def as_numbers(value: Any) -> Tensor:
    """A number, float32 [], or a list of them, float32 [numbers]. Raises DataError for others, NaN and infinity."""
    many = isinstance(value, list | tuple) or (isinstance(value, str) and value.lstrip().startswith("["))
    try:
        result = torch.tensor([float(item) for item in as_list(value)] if many else float(value))
    except (TypeError, ValueError, DataError):
        result = torch.tensor(math.nan)
    if isinstance(value, bool) or not bool(result.isfinite().all()):
        raise DataError(
            f"{_kind(value)} is no number or list of numbers", "correct the row, or set task.kind=classification"
        )
    return result


def shown(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _order(labels: set[Label]) -> Any:
    """Sort key: by number where all labels are numbers, or texts that are; else as text."""
    if all(not isinstance(label, str) or _is_whole(label) for label in labels):
        return lambda label: (int(label), str(label))
    return str


def _is_whole(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit()


def _told(value: Any) -> str:
    """A label for an error: what may be the name of a class as it is."""
    return repr(value) if isinstance(value, str) and shown_name(value) == value else _kind(value)


def _kind(value: Any) -> str:
    """A value for an error: what may be a text of the data's is told by its kind and size, never repeated."""
    if isinstance(value, str):
        return f"(a text of {len(value):,} characters)"
    if isinstance(value, list | tuple | dict):
        return f"(a {type(value).__name__} of {len(value):,})"
    return repr(value)[:40]


def column(rows: Any, name: str, size: int = 4096) -> Iterator[Any]:
    """Go through one column of a map-style data set of records, some thousand rows at a time."""
    for first in range(0, len(rows), size):
        part = list(range(first, min(first + size, len(rows))))
        records = rows.__getitems__(part) if hasattr(rows, "__getitems__") else [rows[row] for row in part]
        for record in records:
            yield record[name]
