"""Follows a file of a run that grows, line by line, without reading it twice."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from drumline.rundir import TORN


class Follower:
    """Gives the records that a .jsonl file got since the last look; a file that is not there has none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode: int | None = None
        self.rewritten = False
        """Whether the last look found another file there, or a shorter one, and has read it from its beginning: a run
        that goes on drops what it will write again."""

    def read(self) -> list[dict[str, Any]]:
        """The new records in order; a line that is torn or no JSON is passed over, a half one waits for its end."""
        try:
            file = self._path.open("rb")
        except OSError:
            return []
        with file:
            self.rewritten = self._is_another(file.fileno())
            file.seek(self._offset)
            records = []
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                record = None if line.endswith(TORN) else _parsed(line)
                if record is not None:
                    records.append(record)
        return records

    def _is_another(self, descriptor: int) -> bool:
        status = os.fstat(descriptor)
        another = self._inode is not None and (status.st_ino != self._inode or status.st_size < self._offset)
        if self._inode is None or another:
            self._inode, self._offset = status.st_ino, 0
        return another


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
