"""Rows that were frozen, read by their numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from drumline.errors import DataError
from drumline.infer.records import Row
from drumline.predictions import PredictionDir


class FrozenRows:
    """Reads rows by their numbers; thread-safe. What it has open stays readable when the files are removed."""

    def __init__(self, directory: PredictionDir) -> None:
        """Raises DataError where the files are gone, as they are once the answers are complete."""
        with ExitStack() as opened:
            try:
                self._lines = opened.enter_context(directory.rows.open("rb"))
                self._offsets = opened.enter_context(directory.offsets.open("rb"))
            except FileNotFoundError:
                raise DataError(
                    f"the rows of {directory.path} are gone",
                    "they are removed when the output file is complete: see it",
                ) from None
            self._opened = opened.pop_all()

    def read(self, numbers: Sequence[int]) -> list[Row]:
        """Rows in the order that is asked for; ones that follow each other are read at once."""
        rows: list[Row] = []
        place = 0
        while place < len(numbers):
            end = place + 1
            while end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
                end += 1
            rows += self._read_block(numbers[place], end - place)
            place = end
        return rows

    def close(self) -> None:
        """Close the files; closing twice is allowed."""
        self._opened.close()

    def _read_block(self, first: int, count: int) -> list[Row]:
        starts = np.frombuffer(_read_all(self._offsets.fileno(), 8 * (count + 1), 8 * first), "<i8").tolist()
        text = _read_all(self._lines.fileno(), starts[-1] - starts[0], starts[0])
        # All at once: a line is a value, and within one there is no end of a line.
        values = json.loads(b"[" + text.rstrip(b"\n").replace(b"\n", b",") + b"]")
        return [Row(first + place, value.get("values", {}), value.get("problem")) for place, value in enumerate(values)]


def _read_all(descriptor: int, size: int, place: int) -> bytes:
    """So many bytes, fewer at the file's end: one call reads 2 GiB at most."""
    found = os.pread(descriptor, size, place)
    if len(found) == size:
        return found
    pieces = [found]
    while found:
        place, size = place + len(found), size - len(found)
        found = os.pread(descriptor, size, place)
        pieces.append(found)
    return b"".join(pieces)
