"""Parquet: a column a type, found by going through all rows first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from drumline.errors import MissingExtra
from drumline.infer.forms import as_json

_TEXT = "text"
"""In place of a type: texts, or values that have only their JSON in common."""
MOST_FIELDS = 1000
"""Objects with more names than this become JSON text: they are no record but a table of their own."""

EXACT_IN = {16: 2**11, 32: 2**24, 64: 2**53}
"""By the bits of a floating type: up to which size it has every integer."""


class Parquet:
    """One row group a call of `write`. A column whose values have no type in common is text, as JSON has them.

    So is one with fractions and integers that are too large to be kept among them. Lists of numbers from a model are
    float32; a column without any value is text.
    """

    looks_first = True

    def __init__(self, file: IO[bytes], columns: Sequence[str], kinds: Mapping[str, str] | None = None) -> None:
        """kinds: see form_of. Raises MissingExtra."""
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise MissingExtra("pyarrow", "data") from None
        self._arrow: Any = pyarrow
        self._parquet: Any = pyarrow.parquet
        self._file = file
        self._types: dict[str, Any] = {name: pyarrow.null() for name in columns}
        self._largest: dict[str, dict[tuple[str | None, ...], int]] = {name: {} for name in columns}
        """Of each column's integers, by where in its values they stand."""
        vector, texts = pyarrow.list_(pyarrow.float32()), pyarrow.list_(pyarrow.string())
        whole, number = pyarrow.int64(), pyarrow.float64()
        types = {"vector": vector, "texts": texts, "integer": whole, "number": number}
        self._unseen: dict[str, Any] = {name: types[kind] for name, kind in (kinds or {}).items()}
        """Types of columns in which no value stands."""
        self._writer: Any = None

    def look(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Widen each column's type to what these rows hold."""
        for name, known in self._types.items():
            if known != _TEXT:
                self._types[name] = self._wider(name, known, [row.get(name) for row in rows])

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows. Raises OSError."""
        schema = self._schema()
        arrays = []
        for field in schema:
            values = [row.get(field.name) for row in rows]
            if self._types[field.name] == _TEXT:
                values = [None if value is None else _as_text(value) for value in values]
            arrays.append(self._arrow.array(values, field.type))
        if self._writer is None:
            self._writer = self._parquet.ParquetWriter(self._file, schema, compression="zstd")
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=schema))

    def close(self) -> None:
        """Write the footer."""
        if self._writer is None:
            self._writer = self._parquet.ParquetWriter(self._file, self._schema(), compression="zstd")
        self._writer.close()

    def _wider(self, name: str, known: Any, values: Sequence[Any]) -> Any:
        """The type for what was seen before and these values; _TEXT where there is none."""
        arrow = self._arrow
        try:
            # Not infer_type, which looks at the first values only and takes 1 and "a" for numbers.
            found = arrow.array(values)
            schemas = [arrow.schema([("", each)]) for each in (known, found.type)]
            wider = arrow.unify_schemas(schemas, promote_options="permissive").field(0).type
        except (arrow.ArrowException, ValueError, TypeError, OverflowError):
            return _TEXT
        largest = self._largest[name]
        for place, size in _integers(arrow, found):
            largest[place] = max(size, largest.get(place, 0))
        return wider if _can_be_kept(arrow, wider) else _TEXT

    def _seen(self, name: str, kind: Any) -> Any:
        """A column's type; where no value was seen, the one that is known of it, else text."""
        return self._unseen.get(name, self._arrow.string()) if self._arrow.types.is_null(kind) else kind

    def _schema(self) -> Any:
        arrow = self._arrow
        for name, kind in self._types.items():
            if kind != _TEXT and not all(_has_exactly(arrow, kind, *each) for each in self._largest[name].items()):
                self._types[name] = _TEXT
        return arrow.schema(
            [(name, arrow.string() if kind == _TEXT else self._seen(name, kind)) for name, kind in self._types.items()]
        )


def _can_be_kept(arrow: Any, kind: Any) -> bool:
    """Whether Parquet has such a type: an object without names it has not."""
    if arrow.types.is_struct(kind):
        fields = [kind.field(place).type for place in range(kind.num_fields)]
        return 0 < len(fields) <= MOST_FIELDS and all(_can_be_kept(arrow, field) for field in fields)
    return not arrow.types.is_list(kind) or _can_be_kept(arrow, kind.value_type)


def _integers(
    arrow: Any, values: Any, place: tuple[str | None, ...] = ()
) -> Iterator[tuple[tuple[str | None, ...], int]]:
    """Where integers stand in these values, by names of fields and None for a list's, and the size of the largest."""
    import pyarrow.compute

    kind = values.type
    if isinstance(values, arrow.ChunkedArray):
        for chunk in values.chunks:
            yield from _integers(arrow, chunk, place)
    elif arrow.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from _integers(arrow, values.field(number), (*place, kind.field(number).name))
    elif arrow.types.is_list(kind):
        yield from _integers(arrow, values.flatten(), (*place, None))
    elif arrow.types.is_integer(kind):
        ends = pyarrow.compute.min_max(values).as_py()
        if ends["min"] is not None:
            yield place, max(abs(ends["min"]), abs(ends["max"]))


def _has_exactly(arrow: Any, kind: Any, place: tuple[str | None, ...], size: int) -> bool:
    """Whether integers up to this size can be kept where they stand in a column of this type."""
    for step in place:
        kind = kind.value_type if step is None else kind.field(step).type
    return not arrow.types.is_floating(kind) or size <= EXACT_IN[kind.bit_width]


def _as_text(value: Any) -> str:
    text = value if isinstance(value, str) else as_json(value)
    return text.encode(errors="replace").decode()
