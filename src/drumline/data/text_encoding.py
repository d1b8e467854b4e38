"""How a text file is encoded, told from its bytes: UTF-8, UTF-16, UTF-32 or Windows-1252, and nothing else.

Western text in one byte a character is never UTF-8 by chance over a whole file, so Windows-1252 (which holds Latin-1's
characters too) is only taken for a file in which no two bytes go together as UTF-8's do. A file with both is read as
UTF-8, and what is none is the reader's to refuse or to set aside: one guess for both would spoil one of them silently.
"""

from __future__ import annotations

import codecs
import gzip
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO

UTF_8, WINDOWS = "utf-8-sig", "cp1252"
NAMES = {UTF_8: "UTF-8", WINDOWS: "Windows-1252"}
"""What a codec is called; others go by their own name in capitals."""

CHUNK_BYTES = 2**20
_LOOKED_AT = 2**16
"""Bytes at the beginning by which UTF-16 without a byte order mark is told."""
_FEWEST_PAIRS = 4
_MARKS = (
    (codecs.BOM_UTF8, UTF_8),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16: its mark begins with that one's
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_TOGETHER = re.compile(rb"[\xc2-\xf4][\x80-\xbf]")
# Five bytes stand for nothing in Windows-1252; its last letter is in hardly any text, but in much that is none.
_NO_LETTERS = re.compile(rb"[\x81\x8d\x8f\x90\x9d\xff]")
_RUNS = re.compile(rb"[\x80-\xff]{3,}")
_ASCII = bytes(range(128))
_MOST_IN_RUNS = 1 / 3
"""Western letters with accents stand among others; where most such bytes stand together it is another script."""


def encoding_of(path: Path) -> str:
    """The name of Python's codec for a text file, of .gz for what is in it. Raises OSError, and gzip's own errors.

    Goes through the file as far as it must: to the end where it is ASCII, UTF-8 or Windows-1252.
    """
    found = path.stat()
    return _encoding_of(path, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=1024)
def _encoding_of(path: Path, size: int, changed: int) -> str:
    del size, changed  # what makes it another file under the same name
    with open_bytes(path) as file:
        return encoding_of_chunks(iter(lambda: file.read(CHUNK_BYTES), b""))


def open_bytes(path: Path) -> IO[bytes] | gzip.GzipFile:
    """Open a file's bytes, of .gz what is in it."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rb")
    return path.open("rb")


def encoding_of_chunks(chunks: Iterator[bytes]) -> str:
    """The same of a file's content in pieces, which are read as far as they must be."""
    first = next(chunks, b"")
    for mark, codec in _MARKS:
        if first.startswith(mark):
            return codec
    if (wide := _without_mark(first[:_LOOKED_AT])) is not None:
        return wide
    decoder = codecs.getincrementaldecoder("utf-8")()
    others, in_runs, beyond_ascii, last = False, 0, False, b""
    chunk = first
    while True:
        if not others:
            try:
                beyond_ascii = not decoder.decode(chunk, final=not chunk).isascii() or beyond_ascii
            except UnicodeDecodeError:
                others = True
                high = 0
        if others:
            # What came before is UTF-8 where it is not ASCII.
            if beyond_ascii or _TOGETHER.search(last + chunk) or _NO_LETTERS.search(chunk):
                return UTF_8
            high += len(chunk.translate(None, _ASCII))
            in_runs += sum(map(len, _RUNS.findall(chunk)))
        if not chunk:
            break
        last, chunk = chunk[-1:], next(chunks, b"")
    return WINDOWS if others and in_runs <= _MOST_IN_RUNS * high else UTF_8


def decoded(content: bytes) -> str:
    """A whole file's content as text, without a byte order mark. Raises UnicodeDecodeError."""
    try:
        return content.decode(UTF_8)
    except UnicodeDecodeError:
        codec = encoding_of_chunks(iter([content]))
        return content.decode(codec)


def name_of(codec: str) -> str:
    """What people call a codec."""
    return NAMES.get(codec, codec.upper())


def _without_mark(start: bytes) -> str | None:
    """UTF-16 by where its zero bytes are: every letter of ASCII has one, always on the same side."""
    pairs = len(start) // 2
    if pairs < _FEWEST_PAIRS:
        return None
    even, odd = start[0 : 2 * pairs : 2].count(0), start[1 : 2 * pairs : 2].count(0)
    if odd and not even and odd >= pairs / 10:
        return "utf-16-le"
    return "utf-16-be" if even and not odd and even >= pairs / 10 else None
