"""Held-out rows taken from the training rows, where no others are named: by a hash of content, so always alike."""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from drumline.config.data import Data
from drumline.data.mixture import Mixture, mixed
from drumline.data.packing import PackedRows
from drumline.data.record_cache import RecordRows
from drumline.errors import ConfigError

MOST_ROWS = 2000
"""Held-out rows beyond which an evaluation costs more than it tells: its accuracy is then known to about 1%."""

Hashes = NDArray[np.uint64]
Places = NDArray[np.int64]
logger = logging.getLogger("drumline")


class ChosenRows(Dataset[Any]):
    """Some rows of a map-style data set, in its order; columns are told of as over all of them."""

    def __init__(self, whole: Any, places: Places) -> None:
        self.whole = whole
        self._places = places
        schema = getattr(whole, "schema", None)
        self.schema = None if schema is None else replace(schema, num_rows=len(places))

    def __len__(self) -> int:
        return len(self._places)

    @property
    def content_key(self) -> str | None:
        """Equal for equal rows, where the whole data set has such a key; else None."""
        whole = getattr(self.whole, "content_key", None)
        return None if whole is None else f"{whole} {hashlib.sha256(self._places.tobytes()).hexdigest()}"

    @property
    def lengths(self) -> Any:
        """Those of the whole data set's rows that are here, where it has lengths."""
        return self.whole.lengths[self._places]

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self.whole[int(self._places[index])]

    def __getitems__(self, indexes: Sequence[int]) -> list[Any]:
        """Read several rows, at once where the data set can."""
        places = [int(self._places[index]) for index in indexes]
        at_once = getattr(self.whole, "__getitems__", None)
        return [self.whole[place] for place in places] if at_once is None else list(at_once(places))


def with_held_out(data: Data, train: Any, held_out: Any | None, columns: Sequence[str] = ()) -> tuple[Any, Any | None]:
    """Training and held-out rows of a data section: as they are, or divided as its eval_fraction says.

    columns: see `split_off`.
    """
    fraction = getattr(data, "eval_fraction", 0.0)
    if held_out is not None or not fraction:
        return train, held_out
    train, held_out = split_off(train, fraction, columns)
    if held_out is None:
        logger.warning("data.eval_fraction: nothing is held out: %d rows, too few of them different", len(train))
    return train, held_out


def split_off(rows: Any, fraction: float, columns: Sequence[str] = ()) -> tuple[Any, Any | None]:
    """Training rows and held-out rows: of all rows that share, at least one and at most MOST_ROWS.

    Rows with equal content in `columns` (none: in all) stay on one side, so that nothing that was trained on is
    evaluated; where that leaves none to hold out, the second is None. More rows at the end, or another order, move few
    of them to the other side. Raises ConfigError for rows that only come one after the other, or hold more than text
    and numbers.
    """
    parts = list(zip(rows.parts, rows.weights, strict=True)) if isinstance(rows, Mixture) else [(rows, 1.0)]
    hashes = [row_hashes(part, columns) for part, _ in parts]
    chosen = lowest(np.concatenate(hashes), fraction)
    if not chosen.any():
        return rows, None
    kept, apart, first = [], [], 0
    for (part, weight), own in zip(parts, hashes, strict=True):
        mine = chosen[first : first + len(own)]
        # A source of which all rows are on one side is no part of the other: nothing can be made of no row.
        if not mine.all():
            kept.append((ChosenRows(part, np.flatnonzero(~mine)), weight))
        if mine.any():
            apart.append((ChosenRows(part, np.flatnonzero(mine)), 1.0))
        first += len(own)
    train, held_out = mixed(kept), mixed(apart)
    if (schema := getattr(rows, "schema", None)) is not None:
        train.schema = replace(schema, num_rows=len(train))
        held_out.schema = replace(schema, num_rows=len(held_out), num_bad=0, bad_rows=())
    return train, held_out


def lowest(hashes: Hashes, fraction: float) -> NDArray[np.bool_]:
    """Pure: the rows with the lowest hashes, bool [rows]; equal ones all or none, and those too many passed over."""
    wanted = min(MOST_ROWS, max(1, round(len(hashes) * fraction)))
    if wanted >= len(hashes):
        return np.zeros(len(hashes), dtype=bool)
    values, counts = np.unique(hashes, return_counts=True)
    taken = np.zeros(len(values), dtype=bool)
    for place, count in enumerate(counts.tolist()):
        if count <= wanted:
            taken[place] = True
            wanted -= count
        if not wanted:
            break
    return np.isin(hashes, values[taken])


def row_hashes(rows: Any, columns: Sequence[str] = ()) -> Hashes:
    """64 bits of each row's content in `columns`, none: in all; of windows of a text, which differ, of their place."""
    if getattr(rows, "schema", None) is not None and rows.schema.num_rows is None:
        raise ConfigError(
            "data.eval_fraction: rows that only come one after the other cannot be divided beforehand",
            "name held-out rows instead (data.eval_split), or set data.streaming to false",
        )
    return np.fromiter((_hash(content) for content in _contents(rows, columns)), dtype=np.uint64, count=len(rows))


def _contents(rows: Any, columns: Sequence[str]) -> Iterator[bytes]:
    if isinstance(rows, RecordRows) and not columns:
        # As they stand in the cache, a line each; read, not mapped, so that the file is never in memory.
        with (rows.folder / "rows.jsonl").open("rb") as file:
            yield from file
    elif isinstance(rows, PackedRows):
        yield from (str(place).encode() for place in range(len(rows)))
    else:
        for place in range(len(rows)):
            row = rows[place]
            row = {name: row.get(name) for name in columns} if columns else row
            yield json.dumps(row, sort_keys=True, ensure_ascii=False, default=_plain).encode(errors="surrogatepass")


def _hash(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _plain(value: Any) -> str:
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    raise ConfigError(
        f"data.eval_fraction: rows hold values of type {type(value).__name__}, not only text and numbers",
        "name held-out rows instead (data.eval, or data.eval_split)",
    )
