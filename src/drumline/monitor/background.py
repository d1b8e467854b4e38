"""Something slow, read again and again on a thread of its own, for a view that must answer to keys at once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

logger = logging.getLogger("drumline")

Value = TypeVar("Value")

GRACE_S = 10.0
"""How long a read may take before its value is no longer called fresh, beside three times its pace."""


class Background(Generic[Value]):
    """Reads every `every_s` seconds, counted from the end of the read before, as a context; `value` is the newest.

    A read that fails is logged, once as long as it fails the same way, and leaves the value as it was.
    """

    def __init__(self, read: Callable[[], Value], every_s: float, first: Value) -> None:
        """read: its close(), if it has one, is called at the end. first: the value before a read has ended."""
        self.value = first
        self._read = read
        self._every_s = every_s
        self._read_at: float | None = None
        self._there, self._ended = threading.Event(), threading.Event()
        self._complaint = ""

    def __enter__(self) -> Self:
        threading.Thread(target=self._work, name="drumline-background", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Nobody waits for it: a driver or a network file system may hold it for long.
        self._ended.set()

    def wait(self, limit_s: float) -> None:
        """Wait for the end of the first read, for limit_s seconds at most."""
        self._there.wait(limit_s)

    def fresh(self) -> Value:
        """The value, for who tells its age by when it was asked. Raises TimeoutError where it is long overdue."""
        if self._read_at is None or time.monotonic() - self._read_at > 3 * self._every_s + GRACE_S:
            raise TimeoutError("it is not read any more")
        return self.value

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                self.value = self._read()
                self._read_at = time.monotonic()
                self._complaint = ""
            except Exception as error:
                complaint = f"{type(error).__name__}: {error}"
                if complaint != self._complaint:
                    self._complaint = complaint
                    logger.warning("what is shown is not up to date: %s", complaint, exc_info=error)
            self._there.set()
            self._ended.wait(self._every_s)
        getattr(self._read, "close", lambda: None)()
