"""Parquet: rows of a table, a batch at a time. The only file that imports pyarrow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from drumline.data.record_text import BadRow, Numbered, Record
from drumline.errors import DataError, MissingExtra

_BATCH_ROWS = 1024
_log = logging.getLogger(__name__)


def read_parquet(path: Path) -> Iterator[Numbered]:
    """Yield the rows of a Parquet file; dates and times become text as ISO 8601 has it, decimals numbers.

    Columns of bytes, which no record can hold, are left out with a warning. Raises DataError for a damaged file.
    """
    try:
        import pyarrow.lib
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("pyarrow", "data") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            types = {field.name: str(field.type) for field in file.schema_arrow}
            if left_out := [name for name, kind in types.items() if "binary" in kind]:
                _log.warning("%s: columns of bytes are left out: %s", path, ", ".join(left_out))
            converted = {name: convert for name, kind in types.items() if (convert := _conversion(kind))}
            wanted = [name for name in types if name not in left_out]
            number = 0
            for batch in file.iter_batches(_BATCH_ROWS, columns=wanted):
                for row in _rows(batch):
                    number += 1
                    if isinstance(row, BadRow):
                        yield Numbered(number, row)
                        continue
                    for name, convert in converted.items():
                        row[name] = None if row[name] is None else convert(row[name])
                    yield Numbered(number, row)
    except (OSError, pyarrow.lib.ArrowException) as error:
        # Not with the error itself: some of the package's messages repeat a value.
        raise DataError(
            f"{path} cannot be read as Parquet: {type(error).__name__}", "fetch the file again, or save it anew"
        ) from None


def _rows(batch: Any) -> Iterator[Record | BadRow]:
    """The rows of a batch; bad is one with what Python cannot hold: text that is not UTF-8, a date too far away."""
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError) as error:
        if len(batch) > 1:
            for place in range(len(batch)):
                yield from _rows(batch.slice(place, 1))
        else:
            yield BadRow(f"it has a value that cannot be read: {type(error).__name__}", "")


def _conversion(kind: str) -> Callable[[Any], Any] | None:
    if kind.startswith(("timestamp", "date", "time")):
        return lambda value: str(value.isoformat())
    if kind.startswith("decimal"):
        return float
    return (lambda value: float(value.total_seconds())) if kind.startswith("duration") else None
