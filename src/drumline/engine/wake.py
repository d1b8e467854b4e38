"""Interrupting the main thread in what it sleeps in, from another thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

WAKE: int | None = getattr(signal, "SIGRTMIN", 0) + 8 if hasattr(signal, "SIGRTMIN") else None
"""A real-time signal that neither Python nor the C library uses; None where a system has none."""


@contextmanager
def interruptible(handler: Callable[[], None]) -> Iterator[None]:
    """Inside, `wake` makes the main thread call `handler`, whose exception then comes out of what it sleeps in.

    In another thread than the main one nothing is set.
    """
    if WAKE is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        handler()

    before = signal.signal(WAKE, handle)
    try:
        yield
    finally:
        signal.signal(WAKE, before)


def wake(thread: int) -> None:
    """Interrupt the thread with this identifier, if it is the main one."""
    if WAKE is not None and thread == threading.main_thread().ident:
        signal.pthread_kill(thread, WAKE)
