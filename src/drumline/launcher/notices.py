"""Signals that ask a process to stop: noted and no more, so that it stops where it can be gone on from."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from drumline.launcher.spec import MARK

REPEAT_S = 0.5
"""A signal that comes again within this is the same one: timeout(1), systemd and some of SLURM's plugins send it to a
process and to others of its group, which pass it on."""
URGENT = (signal.SIGINT, signal.SIGTERM)
"""Those of which a second one means: at once. What a scheduler sends in advance (SIGUSR1) is none of them."""

_STATUS = Path("/proc/self/status")

Handler = Callable[[int, FrameType | None], None]


class Notice:
    """Which stop signals have come."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.first: signal.Signals | None = None
        self.time = 0.0
        """When the first came, in seconds since 1970."""
        self._urgent_since: float | None = None
        self._seen: set[int] = set()

    def take(self, number: int) -> Literal["new", "same", "again"]:
        """Note a signal. same: it has come before; again: a second urgent one, on which the process ends at once."""
        if self.first is None:
            self.first, self.time = signal.Signals(number), time.time()
        if number in URGENT:
            now = self._clock()
            if self._urgent_since is None:
                self._urgent_since = now
            elif now > self._urgent_since + REPEAT_S:
                return "again"
        is_new = number not in self._seen
        self._seen.add(number)
        return "new" if is_new else "same"

    def handle(self, number: int, frame: FrameType | None) -> None:
        """As a handler. At a second urgent signal it raises KeyboardInterrupt, but in a worker of our launcher.

        There the launcher alone decides, which gets the signal too and ends its workers by SIGKILL.
        """
        if self.take(number) == "again" and MARK not in os.environ:
            raise KeyboardInterrupt


@contextmanager
def handled(names: Iterable[str], handler: Handler) -> Iterator[None]:
    """Inside, these signals go to `handler`; afterwards to whom they went before.

    One that is ignored (nohup, a background job) stays so, and so does one that has a handler outside of Python, as
    faulthandler's, which could not be put back. Outside of the main thread nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.Signals[name] for name in names):
            if signal.getsignal(number) is not signal.SIG_IGN and not _is_foreign(number):
                before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _is_foreign(number: signal.Signals) -> bool:
    """Whether a signal has a handler that Python does not know: it is caught (proc(5), SigCgt), and not by Python's."""
    known = signal.getsignal(number)
    if known is None:
        return True
    if known is not signal.SIG_DFL or not _STATUS.exists():
        return False
    [caught] = re.findall(r"^SigCgt:\s*([0-9a-f]+)$", _STATUS.read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (number - 1) & 1)


_current: Notice | None = None
"""What is being noted in this process."""


@contextmanager
def noting(names: Iterable[str]) -> Iterator[Notice]:
    """Inside, these signals are only noted. Entered again inside, also by another thread, it gives the same notice."""
    global _current
    before = _current
    notice = before or Notice()
    if threading.current_thread() is not threading.main_thread():
        yield notice
        return
    _current = notice
    try:
        with handled(names, notice.handle):
            yield notice
    finally:
        _current = before
