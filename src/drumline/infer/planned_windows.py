"""The planned windows on disk, one file each, and an index of them that does not hold their rows."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

from drumline.errors import DataError
from drumline.infer.ledger_folder import is_there
from drumline.infer.planning import MeasuredWindow
from drumline.infer.records import Batch, Window
from drumline.predictions import PredictionDir
from drumline.rundir import read_json, write_atomic

_HELD = 4
"""Windows that are kept in memory: the open batches lie in few of them."""

_HEAD = re.compile(rb'\{"number":\d+,"first_row":(\d+),"num_rows":(\d+),"first_batch":(\d+),"num_batches":(\d+),')


class _Place(NamedTuple):
    first_row: int
    num_rows: int
    first_batch: int
    num_batches: int


class PlannedWindows:
    """All windows that were planned so far, in their order; not thread-safe."""

    def __init__(self, directory: PredictionDir) -> None:
        self._directory = directory
        self._places: list[_Place] = []
        self._first_batches: list[int] = []
        self._held: OrderedDict[int, MeasuredWindow] = OrderedDict()

    def look(self) -> None:
        """Take in the windows that were planned since the last look."""
        while is_there(self._directory.window(len(self._places))):
            place = _place_of(self._directory.window(len(self._places)))
            self._places.append(place)
            self._first_batches.append(place.first_batch)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def next_row(self) -> int:
        """The first row that no window holds."""
        return self._places[-1].first_row + self._places[-1].num_rows if self._places else 0

    @property
    def num_batches(self) -> int:
        """Batches of all windows."""
        return self._places[-1].first_batch + self._places[-1].num_batches if self._places else 0

    def batch(self, number: int) -> Batch:
        """One batch, by its number over the whole run."""
        # Of windows without a batch, which begin with the same number as the next, the last one is found.
        window = self.load(bisect_right(self._first_batches, number) - 1)
        return window.batches[number - window.batches[0].number]

    def load(self, number: int) -> MeasuredWindow:
        """One window."""
        if number not in self._held:
            self._held[number] = as_window(read_json(self._directory.window(number)))
            if len(self._held) > _HELD:
                self._held.popitem(last=False)
        self._held.move_to_end(number)
        return self._held[number]


def _place_of(path: Path) -> _Place:
    """Read only the beginning: of ten million rows all windows would take a minute."""
    with path.open("rb") as file:
        head = _HEAD.match(file.read(300))
    if head is None:
        raise DataError(f"{path} is damaged", "remove the run directory, and begin anew")
    return _Place(*map(int, head.groups()))


def write_window(directory: PredictionDir, window: Window, first_batch: int) -> None:
    """Write a window under its final name."""
    value = {
        "number": window.number,
        "first_row": window.first_row,
        "num_rows": window.num_rows,
        "first_batch": first_batch,
        "num_batches": len(window.batches),
        "batches": [{"rows": batch.rows, "width": batch.width} for batch in window.batches],
        "problems": window.problems,
    }
    if isinstance(window, MeasuredWindow):
        value["lengths"] = window.lengths
    # Compact: a million rows are some hundred of these.
    write_atomic(directory.window(window.number), json.dumps(value, separators=(",", ":")) + "\n")


def as_window(value: Any) -> MeasuredWindow:
    """A window from its JSON."""
    first = value["first_batch"]
    batches = tuple(
        Batch(first + place, tuple(batch["rows"]), batch["width"]) for place, batch in enumerate(value["batches"])
    )
    problems = {int(row): problem for row, problem in value["problems"].items()}
    lengths = tuple((edge, count) for edge, count in value.get("lengths", ()))
    return MeasuredWindow(value["number"], value["first_row"], value["num_rows"], batches, problems, lengths)
