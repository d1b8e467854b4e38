"""Encodes records in several processes and writes what they give, in order, to the files of one cache."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from drumline.data.loader import LoaderOptions, Reader
from drumline.data.source import Source
from drumline.data.token_rows import Learned
from drumline.errors import DataError

Encode = Callable[[Mapping[str, Any]], Sequence[tuple[NDArray[Any], Learned]]]
"""The rows that a record becomes, of every record as many: of each its ids and which of them are learned."""

PIECE = 256
"""Records that a process encodes at a time."""
WORTH_A_PROCESS = 4096
"""Records from which on another process saves more time than its start takes."""
MOST_PROCESSES = 32


@dataclass
class Counts:
    """What a cache's header holds."""

    id_bytes: int
    num_rows: int = 0
    num_tokens: int = 0
    num_learned: int = 0
    """Tokens that are learned."""
    num_cut: int = 0
    """Rows that were longer than the context."""
    num_cut_tokens: int = 0
    """Tokens that they lost."""
    num_bad: int = 0
    """Records that could not be encoded."""


class _Encoded:
    """What one process made of its records. No tuple: torch would turn arrays in it into tensors on the way."""

    def __init__(self) -> None:
        self.ids: list[NDArray[Any]] = []
        self.learned: list[Learned] = []
        self.lengths: list[int] = []
        self.bad: list[dict[str, Any]] = []


class _Records(Dataset[Any]):
    """Records by the piece; torch's fetcher hands `__getitems__` what the batch sampler gave."""

    def __init__(self, records: Any, encode: Encode, context: int) -> None:
        self._records = records
        self._encode = encode
        self._context = context

    def __getitems__(self, rows: range) -> _Encoded:
        """Encode one piece; ids are kept up to the context."""
        made = _Encoded()
        for row, record in zip(rows, self._read(rows), strict=True):
            try:
                if isinstance(record, DataError):
                    raise record
                rows_of_record = self._encode(record)
            except DataError as error:
                made.bad.append({"row": row, "problem": error.problem, "fix": error.fix})
                continue
            for ids, learned in rows_of_record:
                made.lengths.append(len(ids))
                made.ids.append(np.asarray(ids[: self._context]))
                made.learned.append(np.asarray(learned[: self._context], dtype=np.bool_))
        return made

    def _read(self, rows: range) -> list[Any]:
        """The records, at once where they can be; in the place of one that cannot be read the error."""
        at_once = getattr(self._records, "__getitems__", None)
        try:
            if at_once is not None:
                return list(at_once(list(rows)))
        except DataError:
            pass  # reading one after the other finds out which
        found: list[Any] = []
        for row in rows:
            try:
                found.append(self._records[row])
            except DataError as error:
                found.append(error)
        return found


def write_rows(records: Any, encode: Encode, folder: Path, vocab_size: int, context: int) -> Counts:
    """Encode all records into files of `folder`; their order stays. Raises DataError for an id beyond vocab_size."""
    counts = Counts(2 if vocab_size <= 2**16 else 4)
    with ExitStack() as stack:
        names = ("ids.bin", "learned.bin", "starts.bin", "bad_rows.jsonl")
        ids, learned, starts, bad = (stack.enter_context((folder / name).open("xb")) for name in names)
        bits = _Bits(learned)
        starts.write(np.zeros(1, "<i8").tobytes())
        for made in _encoded(records, encode, context):
            bad.writelines(json.dumps(row).encode() + b"\n" for row in made.bad)
            counts.num_bad += len(made.bad)
            if not made.ids:
                continue
            joined, flags = np.concatenate(made.ids), np.concatenate(made.learned)
            _check_range(joined, vocab_size)
            ids.write(joined.astype(f"<u{counts.id_bytes}").tobytes())
            bits.write(flags)
            lengths = np.array(made.lengths)
            kept = np.minimum(lengths, context)
            starts.write((counts.num_tokens + np.cumsum(kept)).astype("<i8").tobytes())
            counts.num_rows += len(kept)
            counts.num_tokens += len(joined)
            counts.num_learned += int(flags.sum())
            counts.num_cut += int((lengths > context).sum())
            counts.num_cut_tokens += int((lengths - kept).sum())
        bits.close()
        for file in (ids, learned, starts, bad):
            file.flush()
            os.fsync(file.fileno())
    return counts


class _Bits:
    """Writes flags as bits, eight a byte, without a gap between one call and the next."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._left: Learned = np.empty(0, dtype=np.bool_)

    def write(self, flags: Learned) -> None:
        """Write what fills whole bytes, and keep the rest."""
        whole = np.concatenate([self._left, flags])
        end = len(whole) - len(whole) % 8
        self._out.write(np.packbits(whole[:end]).tobytes())
        self._left = whole[end:]

    def close(self) -> None:
        """Write the rest."""
        self._out.write(np.packbits(self._left).tobytes())


def _encoded(records: Any, encode: Encode, context: int) -> Iterator[_Encoded]:
    """Pieces in order; each is encoded in a process of its own where there are many."""
    total = len(records)
    pieces = [range(start, min(start + PIECE, total)) for start in range(0, total, PIECE)]
    data = _Records(records, encode, context)
    num_workers = min(MOST_PROCESSES, len(os.sched_getaffinity(0)), total // WORTH_A_PROCESS)
    if num_workers < 2:
        yield from map(data.__getitems__, pieces)
        return
    options = LoaderOptions(num_workers, persistent_workers=False)
    reader = Reader(data, Source(records, _as_it_is), options, batch_sampler=pieces, collate_fn=_as_it_is)
    try:
        yield from reader.items()
    finally:
        reader.close()


def _as_it_is(made: Any) -> Any:
    return made


def _check_range(ids: NDArray[Any], vocab_size: int) -> None:
    """Stored in 16 bits, an id out of range would turn into another one silently."""
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise DataError(
            f"the tokenizer gives ids {ids.min()} to {ids.max()}, its vocab_size is {vocab_size}",
            "make vocab_size one more than the tokenizer's largest id",
        )
