"""What one worker did so far, for whoever watches the run: a line every few seconds, sums since it began."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from drumline.infer.records import ERROR, Answer, Prepared
from drumline.rundir import LineWriter

EVERY_S = 2.0
"""Between two lines."""
MOST_TOKENS = 1 << 40
"""Of one row; a number beyond is none of tokens."""


def worker_name() -> str:
    """A name that no other worker has or had: its machine, its process and a random part."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"


@dataclass(frozen=True)
class Work:
    """What came of one batch."""

    rows: int = 0
    failed: int = 0
    """Rows with an error instead of an answer."""
    tokens: int = 0
    """Read and written."""
    new_tokens: int = 0
    """Written."""
    busy_s: float = 0.0
    """In the model."""
    batches: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(*(mine + its for mine, its in zip(vars(self).values(), vars(other).values(), strict=True)))


def work_of(answers: Sequence[Answer], prepared: Mapping[int, Prepared], busy_s: float) -> Work:
    """Pure: what a batch comes to, by its answers and its rows."""
    new = sum(_tokens_in(answer.get("new_tokens")) for answer in answers)
    failed = sum(answer.get(ERROR) is not None for answer in answers)
    read = sum(row.length for row in prepared.values())
    return Work(len(answers), failed, read + new, new, round(busy_s, 6), 1)


def _tokens_in(value: Any) -> int:
    """A function of the user's own may give the column any value."""
    return value if type(value) is int and 0 < value < MOST_TOKENS else 0


class WorkerRecord:
    """workers/<worker>.jsonl; used by one thread, but for `beat`."""

    def __init__(self, folder: Path, worker: str, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds that only grow. Raises OSError where nothing can be written."""
        folder.mkdir(parents=True, exist_ok=True)
        self._lines = LineWriter(folder / f"{worker}.jsonl")
        self._clock = clock
        self._written_at = clock()
        self._is_closed = False
        self._beat = time.time()
        self.total = Work()
        self._write()

    def add(self, work: Work) -> None:
        """Count a batch whose answers are kept."""
        self.total += work

    def beat(self) -> None:
        """A sign of life of the thread that runs the model: the next line says when the last was given."""
        self._beat = time.time()

    def tick(self) -> None:
        """Write a line, if it is time for one."""
        if self._clock() - self._written_at >= EVERY_S:
            self._write()

    def close(self) -> None:
        """Write the last line, which promises no other sign of life; closing twice is allowed."""
        if not self._is_closed:
            self._is_closed = True
            try:
                self._write()
            finally:
                self._lines.close()

    def _write(self) -> None:
        self._written_at = self._clock()
        beat = None if self._is_closed else round(self._beat, 3)
        line: dict[str, Any] = {**vars(self.total), "busy_s": round(self.total.busy_s, 3), "beat": beat}
        self._lines.write(line)
