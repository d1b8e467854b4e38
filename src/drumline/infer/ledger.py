"""The ledger: what has to be done, who is at it, and what is done, in a folder that any number of processes share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from drumline.errors import DataError, Interrupted
from drumline.infer.answers import AnswersWriter, Encoded
from drumline.infer.batch_states import BatchStates
from drumline.infer.frozen_rows import FrozenRows
from drumline.infer.ledger_folder import FACTS_LOCK, FIRST_BATCH_LOCK, PLAN_LOCK, is_there, lock_file, make_folders
from drumline.infer.locks import Locks
from drumline.infer.planned_windows import PlannedWindows, write_window
from drumline.infer.records import Answer, Batch, Facts, Part, Row, Window
from drumline.infer.stop_requests import ASKED
from drumline.infer.trouble import Trouble, begun, read_trouble, write_trouble
from drumline.predictions import DONE, MOST_STARTS, PredictionDir
from drumline.rundir import LineWriter, read_json, write_json

OTHERS_S = 0.5
"""How long a batch that another holds is passed over without a look; over a network each look is a call."""
LOOK_S = 0.2
"""How old the number of open batches may be."""


@dataclass(frozen=True)
class Lease:
    """A batch that this process alone is at, for as long as it lives or until it ends or gives it back."""

    batch: Batch
    parts: tuple[Part, ...] | None
    """None: it has not failed before and is run whole."""
    starts: int
    """How often it was begun before."""


@dataclass(frozen=True)
class _Held:
    """What is known of a batch that this process is at."""

    parts: tuple[Part, ...] | None
    running: int | None = None
    """The part that was begun last."""


class Ledger:
    """Opened once a process, after write_rows has made the rows; thread-safe."""

    def __init__(self, path: Path, worker: str, stop: Callable[[], bool] = lambda: False) -> None:
        """path: the run directory. worker: a name that no other process has or had. stop: asked while it waits.

        Raises DataError where there are no rows yet, or where the file system knows no locks.
        """
        self.directory = PredictionDir(path)
        if not self.directory.rows_facts.is_file():
            raise DataError(f"{path} holds no rows yet", "begin the run with drumline infer")
        make_folders(self.directory)
        facts = read_json(self.directory.rows_facts)
        self.columns: tuple[str, ...] = tuple(facts["columns"])
        """Of the input, in the order in which they were first seen."""
        self._num_rows = int(facts["num_rows"])
        self._locks = Locks(lock_file(self.directory))
        self._mutex = threading.RLock()
        self._windows = PlannedWindows(self.directory)
        self._states = BatchStates(self.directory.state)
        self._looked_s = -LOOK_S
        self._rows: FrozenRows | None = None
        self._answers = AnswersWriter(self.directory.answers / f"{worker}.jsonl")
        self._answering = threading.Lock()
        self._worker = worker
        self._stop = stop
        self._held: dict[int, _Held] = {}
        self._others: dict[int, float] = {}
        """Batches that another was seen to hold, and when."""

    @property
    def num_rows(self) -> int:
        """Rows of the input."""
        return self._num_rows

    def read(self, numbers: Sequence[int]) -> list[Row]:
        """Rows in the order that is asked for."""
        with self._mutex:
            if self._rows is None:
                self._rows = FrozenRows(self.directory)
        return self._rows.read(numbers)

    def agree(self, find: Callable[[], Facts]) -> Facts:
        """The facts that all workers agree on; `find` finds them where nobody has yet, while the others wait.

        Raises Interrupted where `stop` came first.
        """
        if not self.directory.facts.is_file():
            with self._locks.held(FACTS_LOCK, self._stop) as held:
                if not held:
                    raise Interrupted(ASKED)
                if not is_there(self.directory.facts):
                    write_json(self.directory.facts, find())
        return dict(read_json(self.directory.facts))

    def plan_next(self, plan: Callable[[int, int, int], Window]) -> bool:
        """Plan one more window by `plan(first_row, first_batch, number)`, unless all are or another is at it.

        Whether one was planned. The same numbers must give the same window in every process.
        """
        if self.is_planned or not self._locks.try_take(PLAN_LOCK):
            return False
        try:
            with self._mutex:
                self._windows.look()
                first_row, first_batch, number = self._windows.next_row, self._windows.num_batches, len(self._windows)
            if first_row >= self._num_rows:
                return False
            window = plan(first_row, first_batch, number)
            _check_window(window, first_row, first_batch, number)
            # The bytes first: a window that stands there is one whose batches can be taken.
            self._states.extend(first_batch + len(window.batches))
            write_window(self.directory, window, first_batch)
            with self._mutex:
                self._look()
            return True
        finally:
            self._locks.give(PLAN_LOCK)

    @property
    def is_planned(self) -> bool:
        """Whether every row is in a window."""
        with self._mutex:
            if self._windows.next_row < self._num_rows:
                self._windows.look()
            return self._windows.next_row >= self._num_rows

    @property
    def num_open(self) -> int:
        """Batches that are planned and not done, as of at most LOOK_S ago."""
        with self._mutex:
            if time.monotonic() - self._looked_s >= LOOK_S:
                self._look()
            return self._states.num_open

    def take(self) -> Lease | None:
        """The lowest batch that is neither done nor held by anybody; None if there is none now."""
        with self._mutex:
            self._look()
            now = time.monotonic()
            later = []
            for number in self._states.open_batches():
                if number in self._held:
                    continue
                if now - self._others.get(number, -OTHERS_S) < OTHERS_S:
                    later.append(number)
                elif lease := self._try(number, now):
                    return lease
            for number in later:
                if lease := self._try(number, now):
                    return lease
            return None

    def begin(self, lease: Lease, part: int) -> Lease:
        """Note that a part of a batch is begun; the part that was begun before it has then come to its end.

        Of a batch without parts `take` has noted it.
        """
        with self._mutex:
            held = self._held[lease.batch.number]
            if held.parts is None:
                return lease
            return self._note(lease, _Held(begun(held.parts, held.running, part), part))

    def split(self, lease: Lease, parts: Sequence[Part], reason: str) -> Lease:
        """Note in which parts a batch is to be run from now on; together they must hold all of its rows."""
        if sorted(row for part in parts for row in part.rows) != sorted(lease.batch.rows):
            raise ValueError(f"the parts of batch {lease.batch.number} are not its rows")
        with self._mutex:
            noted = self._note(lease, _Held(tuple(parts)), reason)
        events = LineWriter(self.directory.run.events)
        try:
            facts = {"worker": self._worker, "rows": len(lease.batch.rows), "parts": len(parts), "reason": reason}
            events.write({"event": "batch_split", "batch": lease.batch.number, **facts})
        finally:
            events.close()
        return noted

    def finish(self, lease: Lease, answers: Sequence[Answer | Encoded]) -> None:
        """Keep the answers of a batch, in the order of its rows, and count it as done; the lease is then over.

        Raises OSError where there is no room: nothing of it is kept then. After any error the lease is given back.
        """
        number = lease.batch.number
        if number not in self._held:
            raise ValueError(f"batch {number} is not held here")
        try:
            with self._answering:
                self._answers.write(number, lease.batch.rows, answers)
            self._states.write(number, DONE)
        except BaseException:
            self.give_back(lease)
            raise
        with self._mutex:
            self._release(number)

    def give_back(self, lease: Lease) -> None:
        """Leave a batch to others, as if it had not been begun; one that is not held any more is left alone."""
        number = lease.batch.number
        with self._mutex:
            held = self._held.get(number)
            if held is None:
                return
            try:
                # Where there is no room on the disk it counts as begun, which costs nothing but caution.
                with suppress(OSError):
                    self._states.write(number, lease.starts)
                    if held.parts is not None and held.running is not None:
                        self._note(lease, _Held(begun(held.parts, held.running, None)))
            finally:
                self._release(number)

    @property
    def is_done(self) -> bool:
        """Whether every row has its answer, or its error."""
        if not self.is_planned:
            return False
        with self._mutex:
            self._look()
            return not self._states.num_open

    def close(self) -> None:
        """Close all files; what is held is free for others, and counts as begun. Closing twice is allowed."""
        with self._mutex, self._answering:
            self._locks.close()
            self._answers.close()
            if self._rows is not None:
                self._rows.close()
            self._held.clear()

    def _look(self) -> None:
        if self._windows.next_row < self._num_rows:
            self._windows.look()
        if self._windows.num_batches:
            self._states.look(self._windows.num_batches)
        self._looked_s = time.monotonic()

    def _try(self, number: int, now: float) -> Lease | None:
        if not self._locks.try_take(FIRST_BATCH_LOCK + number):
            self._others[number] = now
            return None
        self._others.pop(number, None)
        try:
            starts = self._states.read(number)  # not as it was looked at: another may just have ended it
            if starts == DONE:
                self._locks.give(FIRST_BATCH_LOCK + number)
                return None
            trouble = read_trouble(self.directory, number)
            lease = Lease(self._windows.batch(number), trouble.parts if trouble else None, starts)
            self._states.write(number, min(starts + 1, MOST_STARTS))
        except BaseException:
            self._locks.give(FIRST_BATCH_LOCK + number)
            raise
        self._held[number] = _Held(lease.parts)
        return lease

    def _note(self, lease: Lease, held: _Held, reason: str | None = None) -> Lease:
        known = read_trouble(self.directory, lease.batch.number)
        reasons = (known.reasons if known else ()) + ((reason,) if reason else ())
        write_trouble(self.directory, lease.batch.number, Trouble(held.parts or (), reasons))
        self._held[lease.batch.number] = held
        return replace(lease, parts=held.parts)

    def _release(self, number: int) -> None:
        del self._held[number]
        self._locks.give(FIRST_BATCH_LOCK + number)


def _check_window(window: Window, first_row: int, first_batch: int, number: int) -> None:
    """A plan with a hole in it would lose rows, and nobody would see it until the end."""
    rows = sorted([row for batch in window.batches for row in batch.rows] + list(window.problems))
    batches = [batch.number for batch in window.batches]
    if (window.number, window.first_row) != (number, first_row) or not window.num_rows:
        raise ValueError(
            f"window {number} from row {first_row} on was planned as {window.number} from {window.first_row}"
        )
    if rows != list(range(first_row, first_row + window.num_rows)):
        raise ValueError(f"window {number} does not hold each of its rows once")
    if batches != list(range(first_batch, first_batch + len(batches))):
        raise ValueError(f"the batches of window {number} are not numbered from {first_batch} on")
