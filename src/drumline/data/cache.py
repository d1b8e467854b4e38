"""Text tokenised once into a memory-mapped file, keyed by the files' content, the tokenizer and the format.

Two files: KEY.bin, the ids in order (little-endian uint16 or uint32), each document followed by the end-of-document
id; and KEY.json, the header, written last: without it there is no cache.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from drumline.data.cache_folder import cannot_write, remove_stale
from drumline.data.files import file_digest, read_pieces
from drumline.data.tokenizers import Ids, Tokenizer
from drumline.errors import DataError
from drumline.rundir import sync_directory, write_atomic

FORMAT = 2
# Text in flight: the records that the tokenizers package makes of it take about 30 bytes a character, 0.25 GB in all.
BATCH_CHARS = 2**23

_REBUILD = "remove it, or start the run again: it is built anew"
_log = logging.getLogger(__name__)


class TokenFile:
    """The ids of one cache file, memory-mapped: pickled by path, so that a loader's worker maps it again.

    `document_starts` int64 [documents] holds where each document begins.
    """

    def __init__(self, path: Path, count: int, dtype: str, document_starts: NDArray[np.int64]) -> None:
        self.path = path
        self.count = count
        self.dtype = dtype
        self.document_starts = document_starts
        self._tokens: NDArray[Any] | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, part: slice) -> NDArray[Any]:
        """Give a part of the stream without reading the rest."""
        if self._tokens is None:
            # A plain array over the map: slicing a numpy.memmap object costs several times as much.
            self._tokens = np.asarray(np.memmap(self.path, _stored(self.dtype), mode="r", shape=(self.count,)))
        return self._tokens[part]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tokens": None}


def cache_path(files: Sequence[Path], tokenizer: Tokenizer, cache_dir: Path) -> Path:
    """Give the path under which these files, in this order, are cached for this tokenizer; reads every file."""
    key = hashlib.sha256(f"drumline tokens {FORMAT} {tokenizer.fingerprint}".encode())
    for file in files:
        key.update(file_digest(file))
    return cache_dir / f"{key.hexdigest()}.bin"


def build_cache(files: Sequence[Path], tokenizer: Tokenizer, path: Path) -> None:
    """Tokenise the files into `path`, which `cache_path` gave; nothing is done where a valid cache is there.

    Text streams through, whatever its size. Safe beside another process that builds the same. Raises DataError for
    text that is not UTF-8, that has no token, that changes meanwhile, or a folder that cannot be written.
    """
    remove_stale(path.parent)
    if _is_valid(path):
        return
    _log.info("tokenising %d files into %s", len(files), path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The name is unique among hosts that share the folder; a process number would not be.
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        try:
            with temporary.open("xb") as out:
                temporary.chmod(0o600)  # texts, for their owner only
                count, starts = _write_tokens(files, tokenizer, out)
                out.flush()
                os.fsync(out.fileno())
            if cache_path(files, tokenizer, path.parent) != path:
                raise DataError(
                    "the text files changed while they were tokenised", "start again when they are complete"
                )
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(path.parent)
        write_atomic(_header_of(path), json.dumps(_header(path, tokenizer, count, starts)) + "\n")
    except OSError as error:
        raise cannot_write("tokenised text", path.parent, files, error) from error
    _log.info("tokenised %d documents into %d tokens", len(starts), count)


def open_cache(path: Path) -> TokenFile:
    """Map a cache that `build_cache` wrote. Raises DataError where it is absent, damaged or truncated."""
    header_path = _header_of(path)
    try:
        header = json.loads(header_path.read_bytes())
        size = path.stat().st_size
        count, dtype = int(header["count"]), str(header["dtype"])
        starts = np.array(header["document_starts"], dtype=np.int64)
        expected = count * _stored(dtype).itemsize
        known = (header["format"], header["key"]) == (FORMAT, path.stem)
    except OSError as error:
        raise DataError(f"there is no tokenised text at {path}: {error.strerror}", _REBUILD) from error
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DataError(f"the header {header_path} is damaged: {error!r}", _REBUILD) from error
    if not known:
        raise DataError(f"the header {header_path} belongs to another cache or format", _REBUILD)
    if size != expected:
        raise DataError(f"{path} has {size} bytes where its header says {expected}", _REBUILD)
    # Absolute: the file is mapped at first use, and again in loader processes, wherever the process then is.
    return TokenFile(path.absolute(), count, dtype, starts)


def _is_valid(path: Path) -> bool:
    try:
        open_cache(path)
    except DataError as error:
        if path.exists():
            _log.warning("%s; it is built anew", error.problem)
        return False
    return True


def _write_tokens(files: Sequence[Path], tokenizer: Tokenizer, out: IO[bytes]) -> tuple[int, list[int]]:
    """Write all ids; give their number and where each document starts. Files without text are no documents."""
    dtype = _stored(_dtype_name(tokenizer))
    end_ids = np.array([tokenizer.end_of_document])
    _check_range(end_ids, tokenizer)
    end = end_ids.astype(dtype).tobytes()
    count, starts = 0, list[int]()
    for ids, starts_document in _encoded(files, tokenizer):
        if starts_document:
            if starts:
                out.write(end)
                count += 1
            starts.append(count)
        _check_range(ids, tokenizer)
        out.write(ids.astype(dtype).tobytes())
        count += len(ids)
    if count == max(0, len(starts) - 1):  # nothing but separators
        raise DataError(f"the tokenizer finds no token in the {len(files)} files", "name files with text")
    out.write(end)
    return count + 1, starts


def _encoded(files: Sequence[Path], tokenizer: Tokenizer) -> Iterator[tuple[Ids, bool]]:
    """Yield the ids of every piece of text, and whether it is a document's first; pieces are encoded many at a time."""
    pieces, firsts, size = list[str](), list[bool](), 0
    for file in files:
        for number, piece in enumerate(read_pieces(file)):
            pieces.append(piece)
            firsts.append(number == 0)
            size += len(piece)
            if size >= BATCH_CHARS:
                yield from zip(tokenizer.encode_batch(pieces), firsts, strict=True)
                pieces, firsts, size = [], [], 0
    yield from zip(tokenizer.encode_batch(pieces), firsts, strict=True)


def _check_range(ids: Ids, tokenizer: Tokenizer) -> None:
    """Stored in 16 bits, an id out of range would turn into another one silently."""
    if len(ids) and not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
        raise DataError(
            f"the tokenizer gives ids {ids.min()} to {ids.max()}, its vocab_size is {tokenizer.vocab_size}",
            "make vocab_size one more than the tokenizer's largest id",
        )


def _dtype_name(tokenizer: Tokenizer) -> str:
    return "uint16" if tokenizer.vocab_size <= 2**16 else "uint32"


def _stored(name: str) -> np.dtype[Any]:
    return np.dtype({"uint16": "<u2", "uint32": "<u4"}[name])


def _header_of(path: Path) -> Path:
    return path.with_suffix(".json")


def _header(path: Path, tokenizer: Tokenizer, count: int, starts: list[int]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "key": path.stem,
        "tokenizer": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "count": count,
        "dtype": _dtype_name(tokenizer),
        "document_starts": starts,
    }
