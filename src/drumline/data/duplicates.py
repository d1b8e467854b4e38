"""Rows with the same text, told by hashes: as it is written, and but for case, spacing and the form of characters."""

from __future__ import annotations

import hashlib
import unicodedata
from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_EXAMPLES = 3
"""Pairs of rows that are named."""


def hash_of(content: str | bytes) -> int:
    """64 bits of a content. Of a million different ones two are taken for equal with a chance of one in 37 million."""
    if isinstance(content, str):
        content = content.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def normalised(text: str) -> str:
    """The text without what seldom matters: small letters, one space between words, compatible characters as one."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


@dataclass(frozen=True)
class Same:
    """Rows that are the same as another one."""

    num_rows: int
    """Rows beyond the first of each text; of two data sets, rows of the second that the first has too."""
    examples: tuple[tuple[int, int], ...] = ()
    """A few of these rows, each with the first row that it equals; numbers from 0."""


class Hashes:
    """Hashes of a data set's texts, 8 bytes each, with the rows they are of."""

    def __init__(self) -> None:
        self._hashes = array("Q")
        self._rows = array("q")

    def add(self, row: int, content: str | bytes) -> None:
        """Note what one row holds."""
        self._hashes.append(hash_of(content))
        self._rows.append(row)

    def repeated(self) -> Same:
        """Rows whose text an earlier row has."""
        hashes, rows = self._sorted()
        first = np.concatenate([[True], hashes[1:] != hashes[:-1]]) if len(hashes) else np.empty(0, bool)
        again = np.flatnonzero(~first)
        # Of each row that comes again, where the run of its equals begins.
        begins = np.maximum.accumulate(np.where(first, np.arange(len(hashes)), 0))[again]
        return _same(rows[again], rows[begins])

    def found_in(self, other: Hashes) -> Same:
        """Rows whose text the other data set has."""
        hashes, rows = self._sorted()
        theirs, their_rows = other._sorted()
        places = np.searchsorted(theirs, hashes)  # the first of equals, and so the one with the lowest row
        inside = places < len(theirs)
        inside[inside] = theirs[places[inside]] == hashes[inside]
        return _same(rows[inside], their_rows[places[inside]])

    def contradicted(self, marks: Hashes) -> int:
        """Texts that rows have with more than one mark, such as a label; `marks` are of the same rows, in order."""
        pairs = np.unique(np.stack([self._all(), marks._all()]), axis=1)
        _, counts = np.unique(pairs[0], return_counts=True)
        return int((counts > 1).sum())

    def _all(self) -> NDArray[np.uint64]:
        return np.frombuffer(self._hashes, np.uint64) if self._hashes else np.empty(0, np.uint64)

    def _sorted(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Hashes in order with their rows; equal ones by row."""
        rows = np.frombuffer(self._rows, np.int64) if self._rows else np.empty(0, np.int64)
        order = np.lexsort((rows, self._all()))
        return self._all()[order], rows[order]


def _same(rows: NDArray[np.int64], firsts: NDArray[np.int64]) -> Same:
    order = np.argsort(rows, kind="stable")[:MOST_EXAMPLES]
    return Same(len(rows), tuple(zip(rows[order].tolist(), firsts[order].tolist(), strict=True)))
