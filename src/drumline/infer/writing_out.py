"""The thread that keeps answers: it writes them to the ledger while the device is at the next batch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, Queue
from typing import NamedTuple

from drumline.infer.answers import Encoded
from drumline.infer.ledger import Lease, Ledger
from drumline.infer.worker_record import EVERY_S, Work, WorkerRecord

MOST_WAITING = 4
"""Batches whose answers may wait to be written; with more, the device waits for the disk."""


logger = logging.getLogger("drumline")


class Answered(NamedTuple):
    """A lease and all that is needed to end it."""

    lease: Lease
    answers: Sequence[Encoded]
    work: Work


class Writer:
    """Finishes leases in a thread of its own, and keeps the worker's record. `put` and `close` raise what fails."""

    def __init__(
        self,
        ledger: Ledger,
        record: WorkerRecord,
        after: Callable[[], None],
        on_error: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        """Both are called in the thread. after: when a lease is finished. on_error: with the first that fails."""
        self._ledger = ledger
        self._record = record
        self._after = after
        self._on_error = on_error
        self._waiting: Queue[Answered | None] = Queue(MOST_WAITING)
        self._error: BaseException | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._main, name="drumline-writer", daemon=True)
        self._thread.start()

    def put(self, answered: Answered) -> None:
        """Have it written; waits where the disk does not keep up. Raises what failed before, and gives this back."""
        if self._error is not None:
            self._ledger.give_back(answered.lease)
            raise self._error
        self._waiting.put(answered)

    def close(self) -> None:
        """Wait until all is written. Raises what failed; a second call does nothing."""
        if not self._is_closed:
            self._end()
            if self._error is not None:
                raise self._error

    def abandon(self) -> None:
        """As close, where another error is on its way already: one in here is only logged."""
        if not self._is_closed:
            self._end()
            if self._error is not None:
                logger.error("answers could not be kept: %s", self._error)

    def _end(self) -> None:
        self._is_closed = True
        self._waiting.put(None)
        self._thread.join()

    def _main(self) -> None:
        while True:
            try:
                answered = self._waiting.get(timeout=EVERY_S)
            except Empty:
                self._guard(self._record.tick)
                continue
            if answered is None:
                self._guard(self._record.close)
                return
            self._guard(partial(self._finish, answered))

    def _finish(self, answered: Answered) -> None:
        if self._error is not None:  # the disk is full, most likely: each further try could only fail later
            self._ledger.give_back(answered.lease)
            return
        self._ledger.finish(answered.lease, answered.answers)
        self._record.add(answered.work)
        self._record.tick()
        self._after()

    def _guard(self, action: Callable[[], None]) -> None:
        """The thread lives on after a failure, so that nobody waits for it in vain."""
        try:
            action()
        except BaseException as error:
            if self._error is None:
                self._error = error
                self._on_error(error)
