"""metrics.jsonl, the tracker that every run has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drumline.plan.record import Plan
from drumline.rundir import LineWriter


class JsonlTracker:
    """Appends each record as one line of JSON, stamped with the time; NaN and Infinity are written as such."""

    def __init__(self, path: Path) -> None:
        self._writer = LineWriter(path)

    def start(self, plan: Plan, total_steps: int | None) -> None:
        """Nothing to write: the plan has a file of its own."""

    def log(self, record: dict[str, Any]) -> None:
        """Append one record; it is on its way to the disk when this returns."""
        self._writer.write(record)

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        self._writer.close()
