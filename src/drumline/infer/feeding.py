"""The thread that takes leases, and has their rows ready before the device asks for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple

from drumline.infer.ledger import Lease, Ledger
from drumline.infer.planning_ahead import FEW, LONGEST_S, SHORTEST_S, News, Plan, Planner
from drumline.infer.records import Prepared
from drumline.infer.rows_in_form import RowsInForm
from drumline.infer.worker_record import EVERY_S

SLOW_S = 0.5
"""A batch that takes longer is worth more than the time to prepare it."""


class Fed(NamedTuple):
    """A lease with its rows in the model's form."""

    lease: Lease
    prepared: dict[int, Prepared]


def num_ahead(num_open: int, last_s: float | None) -> int:
    """Pure: leases to have in hand beside the batch that is run, of which the last one took so long.

    Near the end none where batches are slow: another worker may be the first to be free for it.
    """
    is_slow = last_s is None or last_s >= SLOW_S
    return (num_open >= FEW) + (not is_slow)


class Feeder:
    """Takes leases while the main thread runs others, and has windows planned. What fails in it is raised by `next`."""

    def __init__(
        self,
        ledger: Ledger,
        rows: RowsInForm,
        plan: Plan,
        stop: Callable[[], bool],
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """stop: whether the run was asked to end; also asked from the threads. beat: called in `next`, as it waits."""
        self._ledger = ledger
        self._rows = rows
        self._stop = stop
        self._beat = beat
        self._news = News()
        self._fed: SimpleQueue[Fed | None] = SimpleQueue()
        self._mutex = threading.Lock()
        self._in_hand = self._asked_for = 0
        self._last_s: float | None = None
        self._error: BaseException | None = None
        self._planner = Planner(ledger, rows, plan, self._news, stop)
        self._thread = threading.Thread(target=self._main, name="drumline-feeder", daemon=True)
        self._thread.start()

    def next(self, last_s: float | None = None) -> Fed | None:
        """The next lease, waiting for one; None: all rows of the run are done, or it was asked to stop.

        last_s: how long the one before has taken. Whoever gets a lease gives it back or has it finished. Raises what
        failed in a thread.
        """
        self._last_s = last_s
        self._count(asked_for=1)
        fed = self._wait()
        if fed is not None:
            self._count(asked_for=-1, in_hand=-1)
        elif self._error is not None:
            raise self._error
        return fed

    def fail(self, error: BaseException) -> None:
        """Have `next` raise what failed elsewhere: what is held for ever is nothing to wait for."""
        self._error = self._error or error
        self._news.tell()

    def look_again(self) -> None:
        """Something was finished here: what comes next may be known earlier than the pause's end."""
        self._news.tell()

    def close(self) -> None:
        """End the threads, and give back what nobody asked for; closing twice is allowed."""
        self._news.tell(ends=True)
        self._thread.join()
        self._planner.join()
        while True:
            try:
                fed = self._fed.get_nowait()
            except Empty:
                return
            if fed is not None:
                self._ledger.give_back(fed.lease)

    def _wait(self) -> Fed | None:
        while True:
            self._beat()
            try:
                return self._fed.get(timeout=EVERY_S)
            except Empty:
                continue

    def _count(self, in_hand: int = 0, asked_for: int = 0) -> None:
        with self._mutex:
            self._in_hand += in_hand
            self._asked_for += asked_for
        self._news.tell()

    def _main(self) -> None:
        try:
            while (fed := self._take()) is not None:
                self._fed.put(fed)
        except BaseException as error:
            self._error = self._error or error
        finally:
            self._fed.put(None)

    def _take(self) -> Fed | None:
        """The next lease, once there is room for it in hand; None at the end."""
        pause_s = SHORTEST_S
        while not (self._news.ends or self._stop()):
            seen = self._news.count
            self._planner.check()
            if self._error is not None:
                raise self._error
            if self._in_hand >= self._asked_for + num_ahead(self._ledger.num_open, self._last_s):
                self._news.wait(seen, LONGEST_S)
                continue
            lease = self._ledger.take()
            if lease is not None:
                return self._fed_with(lease)
            if self._ledger.is_done:
                return None
            self._news.wait(seen, pause_s)
            pause_s = min(LONGEST_S, pause_s * 2)
        return None

    def _fed_with(self, lease: Lease) -> Fed:
        try:
            fed = Fed(lease, self._rows.of(lease.batch.rows))
        except BaseException:
            self._ledger.give_back(lease)
            raise
        self._count(in_hand=1)
        return fed
