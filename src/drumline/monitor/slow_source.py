"""A reader that may hang (a driver, a network file system), asked by somebody who may not."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

logger = logging.getLogger("drumline")

Value = TypeVar("Value")

LIMIT_S = 1.0
"""How long an asker waits: three that hang are still well below the 10 s after which Prometheus gives a scrape up."""


class SlowSource(Generic[Value]):
    """Calls `read` on a thread of its own, one call at a time, and keeps what it gave last."""

    def __init__(
        self, read: Callable[[], Value], limit_s: float = LIMIT_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._limit_s = limit_s
        self._clock = clock
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ended.set()
        self._value: Value | None = None
        self._read_at = clock()
        self._complaint = ""

    def get(self) -> Value | None:
        """What a call gives that is begun now, or is under way; the last value where that takes longer or fails.

        None before the first value.
        """
        with self._lock:
            if self._ended.is_set():
                self._ended = threading.Event()
                threading.Thread(target=self._call, args=(self._ended,), name="drumline-source", daemon=True).start()
            ended = self._ended
        ended.wait(self._limit_s)
        return self._value

    def age_s(self) -> float:
        """Seconds since the value was read, or since the start where there is none."""
        return self._clock() - self._read_at

    def _call(self, ended: threading.Event) -> None:
        began = self._clock()
        try:
            self._value = self._read()
            self._read_at = began
            self._complaint = ""
        except Exception as error:
            # A scrape tells all else that is known; what fails the same way each time is told once.
            complaint = f"{type(error).__name__}: {error}"
            if complaint != self._complaint:
                self._complaint = complaint
                logger.warning("a source of metrics failed: %s", complaint, exc_info=error)
        finally:
            ended.set()
