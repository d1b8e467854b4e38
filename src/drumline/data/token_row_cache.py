"""Records as tokens on disk: each encoded once, by several processes, into files that are mapped to read rows.

One folder: ids.bin, the ids of all rows one after the other (little-endian uint16 or uint32); learned.bin, one bit a
token; starts.bin, where each row begins and the last one ends (little-endian int64); bad_rows.jsonl, records that could
not be encoded, and why; header.json. It is renamed into its place when all of it is written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from drumline.data.cache_folder import cannot_write, remove_stale
from drumline.data.mixture import Mixture, mixed
from drumline.data.token_row_writing import Counts, Encode, write_rows
from drumline.data.token_rows import Learned, Row, shifted_row
from drumline.errors import DataError
from drumline.rundir import sync_directory

FORMAT = 1
Build = Callable[[Callable[[], None]], None]
_REBUILD = "remove it, or start the run again: it is built anew"
_log = logging.getLogger("drumline")


@dataclass(frozen=True)
class Encoding:
    """How records become tokens, and where those are kept."""

    encode: Encode
    """Gives a record's rows. Raises DataError for a record that it cannot encode."""
    key: Sequence[str]
    """All that decides what `encode` gives, but for the record: tokenizer, template, settings."""
    vocab_size: int
    """One more than the largest id."""
    context: int
    """Most tokens of a row; what comes after them is cut and counted."""
    cache_dir: Path
    max_bad_fraction: float = 0.0
    """Share of records that cannot be encoded from which on something must be wrong; 0: the first one is refused."""
    per_record: int = 1
    """Rows that a record becomes."""


class TokenRows(Dataset[Row]):
    """The rows of one cache as inputs and labels, by `shifted_row`; pickled by path, mapped where they are read."""

    def __init__(self, folder: Path, counts: Counts) -> None:
        self.folder = folder
        self.counts = counts
        self._maps: tuple[NDArray[Any], NDArray[Any], NDArray[Any]] | None = None

    def __len__(self) -> int:
        return self.counts.num_rows

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, int64 [rows], at most as many as the context has."""
        return np.diff(self._mapped()[2])

    @property
    def num_cut(self) -> int:
        """Rows that were longer than the context."""
        return self.counts.num_cut

    def tokens(self, index: int) -> tuple[NDArray[Any], Learned]:
        """A row's ids, and which of them are learned."""
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        ids, learned, starts = self._mapped()
        start, end = int(starts[index]), int(starts[index + 1])
        first = start // 8
        bits = np.unpackbits(learned[first : -(-end // 8)])[start - 8 * first : end - 8 * first]
        return ids[start:end], bits.view(np.bool_)

    def __getitem__(self, index: int) -> Row:
        return shifted_row(*self.tokens(index))

    def _mapped(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        if self._maps is None:
            kinds = {"ids.bin": f"<u{self.counts.id_bytes}", "learned.bin": "u1", "starts.bin": "<i8"}
            # Plain arrays over the maps: slicing a numpy.memmap object costs several times as much.
            ids, learned, starts = (_map(self.folder / name, kind) for name, kind in kinds.items())
            self._maps = ids, learned, starts
        return self._maps

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": None}


class PairRows(Dataset[dict[str, Row]]):
    """Rows two by two, as {"chosen": row, "rejected": row}, of records that became one of each, in this order."""

    def __init__(self, rows: TokenRows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows) // 2

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of the longer row of each pair, int64 [pairs]: both are filled up to the longest of a batch."""
        longer: NDArray[np.int64] = self.rows.lengths.reshape(-1, 2).max(axis=1)
        return longer

    def __getitem__(self, index: int) -> dict[str, Row]:
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        return {"chosen": self.rows[2 * index], "rejected": self.rows[2 * index + 1]}


def in_pairs(rows: Any) -> Any:
    """What `token_rows` gives, as PairRows; of a Mixture, a Mixture of them."""
    if not isinstance(rows, Mixture):
        return PairRows(rows)
    return mixed(list(zip(map(PairRows, rows.parts), rows.weights, strict=True)))


def token_rows(records: Any, encoding: Encoding, name: str, build: Build | None = None) -> Any:
    """The records as TokenRows, encoded where no cache holds them yet; of a Mixture, a Mixture of them.

    name: what errors call the records, as data.train. build: receives the one function that writes caches, once; see
    load_text. Raises DataError for too many records that cannot be encoded, for none, or a folder that cannot be
    written.
    """
    parts = records.parts if isinstance(records, Mixture) else (records,)
    weights = records.weights if isinstance(records, Mixture) else (1.0,)
    folders = [encoding.cache_dir / f"{_key(part, encoding)}.tokens" for part in parts]

    def write() -> None:
        for part, folder in zip(parts, folders, strict=True):
            build_token_rows(part, encoding, folder, name)

    if build is None:
        write()
    else:
        build(write)
    found = [open_token_rows(folder) for folder in folders]
    for rows in found:
        _check(rows, encoding, name)
    return mixed(list(zip(found, weights, strict=True)))


def build_token_rows(records: Any, encoding: Encoding, folder: Path, name: str) -> None:
    """Encode records into `folder`; nothing is done where a valid cache is there.

    Safe beside another process that builds the same. Raises DataError for a folder that cannot be written.
    """
    remove_stale(folder.parent)
    if _is_valid(folder):
        return
    _log.info("%s: encoding %d rows into %s", name, len(records), folder)
    # The name is unique among hosts that share the folder; a process number would not be.
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir(mode=0o700)  # texts, for their owner only
        counts = write_rows(records, encoding.encode, temporary, encoding.vocab_size, encoding.context)
        header = {"format": FORMAT, "key": folder.stem, **asdict(counts)}
        with (temporary / "header.json").open("xb") as out:
            out.write(json.dumps(header).encode())
            out.flush()
            os.fsync(out.fileno())
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)  # one that is damaged, see above
        temporary.rename(folder)
        sync_directory(folder.parent)
    except OSError as error:
        if not _is_valid(folder):  # else another process was quicker
            raise cannot_write("tokens", folder.parent, [], error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def open_token_rows(folder: Path) -> TokenRows:
    """Map a cache that `build_token_rows` wrote. Raises DataError where it is absent, damaged or truncated."""
    try:
        header = json.loads((folder / "header.json").read_bytes())
        known = (header.pop("format"), header.pop("key")) == (FORMAT, folder.stem)
        counts = Counts(**header)
        sizes = [(folder / name).stat().st_size for name in ("ids.bin", "learned.bin", "starts.bin")]
    except OSError as error:
        raise DataError(f"there are no tokens at {folder}: {error.strerror}", _REBUILD) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"the header in {folder} is damaged: {error!r}", _REBUILD) from error
    total = counts.num_tokens
    if not known or sizes != [total * counts.id_bytes, -(-total // 8), 8 * (counts.num_rows + 1)]:
        raise DataError(f"the files in {folder} are not those that their header describes", _REBUILD)
    # Absolute: the files are mapped at first use, and again in loader processes, wherever the process then is.
    return TokenRows(folder.absolute(), counts)


def _key(records: Any, encoding: Encoding) -> str:
    """Hex SHA-256 of the records' content and all that decides what becomes of them."""
    parts = [f"drumline token rows {FORMAT}", str(encoding.vocab_size), str(encoding.context), *encoding.key]
    return hashlib.sha256(json.dumps([*parts, content_key(records)]).encode()).hexdigest()


def content_key(records: Any) -> str:
    """Equal for equal records. Where they have a `content_key` of their own, that; else they are read through."""
    own = getattr(records, "content_key", None)
    if own is not None:
        return str(own)
    key = hashlib.sha256()
    for index in range(len(records)):
        record = records[index]
        told = json.dumps(dict(record) if isinstance(record, Mapping) else record, default=repr)
        key.update(told.encode() + b"\n")
    return key.hexdigest()


def _check(rows: TokenRows, encoding: Encoding, name: str) -> None:
    """Refuse too many bad records, else say how many were left out and where they are listed."""
    counts = rows.counts
    total = counts.num_rows // encoding.per_record + counts.num_bad
    if not total:
        raise DataError(f"{name} has no row", f"check {name}")
    if not counts.num_bad:
        return
    listed = rows.folder / "bad_rows.jsonl"
    first = json.loads(listed.read_bytes().partition(b"\n")[0])
    what = f"{name}: {counts.num_bad:,} of {total:,} rows cannot be encoded; the first is row {first['row']}"
    what += f": {first['problem']}"
    if not counts.num_rows or counts.num_bad >= encoding.max_bad_fraction * total:
        raise DataError(what, f"{first['fix']}; all of them are listed in {listed}")
    _log.warning("%s; left out, all are listed in %s", what, listed)


def _map(path: Path, kind: str) -> NDArray[Any]:
    """A file as an array; an empty file cannot be mapped."""
    return np.asarray(np.memmap(path, kind, mode="r")) if path.stat().st_size else np.empty(0, kind)


def _is_valid(folder: Path) -> bool:
    try:
        open_token_rows(folder)
    except DataError as error:
        if folder.exists():
            _log.warning("%s; it is built anew", error.problem)
        return False
    return True
