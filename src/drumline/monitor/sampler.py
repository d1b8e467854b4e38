"""Looks at all GPUs at a steady pace, on one thread of its own that nobody has to wait for."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from drumline.hardware.records import Snapshot
from drumline.monitor.forks import renew_after_fork
from drumline.monitor.history import History
from drumline.monitor.source import MachineSource

logger = logging.getLogger("drumline")

STUCK_AFTER_S = 5.0
"""How long the driver may take for a look; usual are milliseconds, seconds while a GPU without users starts up."""
STOP_S = 1.0
"""How long stop() waits for a look that is under way."""


def next_tick(last: int, elapsed_s: float, every_s: float) -> tuple[int, int]:
    """Pure: the number of the next tick after tick `last`, and how many were missed.

    Tick n is due n * every_s after the start, whenever the ones before were: a late one moves no other.
    """
    due = max(last + 1, math.ceil(elapsed_s / every_s))
    return due, due - last - 1


class Sampler:
    """Takes a Snapshot every `every_s` seconds, keeps the newest and a History; start() and stop(), or `with`.

    source: what is looked at (None: this machine through NVML, in one session); its close(), if it has one, is called
    at the end. on_sample is called on the sampler's thread with each Snapshot. What either raises is logged, and
    sampling goes on: a watcher must outlive what it watches. In a forked child it is stopped and can be started.
    """

    def __init__(
        self,
        every_s: float = 1.0,
        *,
        source: Callable[[], Snapshot] | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_sample: Callable[[Snapshot], None] | None = None,
    ) -> None:
        self.every_s = every_s
        self.history = History(clock=clock)
        self.latest: Snapshot | None = None
        """The newest Snapshot; None before the first."""
        self.previous: Snapshot | None = None
        """The one before it, for what takes two: activity() and traffic over NVLink."""
        self.overruns = 0
        """Ticks that were left out because the look before took too long."""
        self._source = MachineSource() if source is None else source
        self._clock = clock
        self._on_sample = on_sample
        self._taken_at: float | None = None
        self._complaint = ""
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget thread and locks, in a forked child: it has none of the threads of its parent."""
        self._lock = threading.Condition()
        self._looking = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._busy = False
        self._looks = self._wanted = 0
        self._began: float | None = None

    def start(self) -> None:
        """Start looking, the first time at once; without effect where it does already."""
        with self._lock:
            self._stopping = False
            # One that still waits for the driver goes on when it answers: a second would only hang beside it.
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="drumline-sampler", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End it and close the source; returns within STOP_S though the driver hangs, whose thread is then left."""
        with self._lock:
            thread = self._thread
            self._stopping = True
            self._lock.notify_all()
        if thread is None:
            self._close()
        elif thread is not threading.current_thread():
            thread.join(STOP_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether its thread is there, be it waiting for the driver."""
        return self._thread is not None

    @property
    def stuck(self) -> str | None:
        """That the driver does not answer, in words; None where it does."""
        began = self._began
        waited = 0.0 if began is None else self._clock() - began
        return f"the driver has not answered for {waited:.0f} s" if waited > STUCK_AFTER_S else None

    def age_s(self) -> float | None:
        """Seconds since `latest` was taken; None before the first."""
        return None if self._taken_at is None else self._clock() - self._taken_at

    def look(self) -> Snapshot:
        """One look now, in the caller's own thread, which waits as long as the driver takes."""
        with self._looking:
            now = self._clock()
            self._began = now
            try:
                snapshot = self._source()
            except Exception as error:
                self._complain("the GPUs could not be read", error)
                snapshot = Snapshot(time.time(), f"reading failed: {type(error).__name__}: {error}")
            finally:
                self._began = None
            self.history.add(snapshot, now)
            self.previous, self.latest, self._taken_at = self.latest, snapshot, now
        if self._on_sample is not None:
            try:
                self._on_sample(snapshot)
            except Exception as error:
                self._complain("a sample could not be made use of", error)
        return snapshot

    def look_within(self, limit_s: float = STUCK_AFTER_S) -> Snapshot | None:
        """A Snapshot that is begun now, by the sampler's running thread; None where that takes longer.

        At once where the driver is known not to answer.
        """
        if self.stuck is not None:
            return None
        with self._lock:
            # A look that is under way began before now: the one after it is meant.
            wanted = self._wanted = self._looks + (2 if self._busy else 1)
            self._lock.notify_all()
            self._lock.wait_for(lambda: self._looks >= wanted or self._thread is None, limit_s)
            return self.latest if self._looks >= wanted else None

    def _run(self) -> None:
        start = self._clock()
        tick = 0
        while self._wait_for(start + tick * self.every_s):
            on_time = self._clock() >= start + tick * self.every_s  # else somebody has asked for it in between
            self.look()
            with self._lock:
                self._busy = False
                self._looks += 1
                self._lock.notify_all()
            if on_time:
                tick, missed = next_tick(tick, self._clock() - start, self.every_s)
                self.overruns += missed
        self._close()

    def _wait_for(self, due: float) -> bool:
        """Until then, or until somebody wants a look or the end; False at the end."""
        with self._lock:
            while not self._stopping and self._looks >= self._wanted and (left := due - self._clock()) > 0:
                self._lock.wait(left)
            self._busy = not self._stopping
            if self._stopping:
                self._thread = None  # under the lock: a start() from now on makes a new one
                self._lock.notify_all()
            return self._busy

    def _close(self) -> None:
        """End the session with the driver, unless somebody still waits in it."""
        close = getattr(self._source, "close", None)
        if close is not None and self._looking.acquire(timeout=STOP_S):
            try:
                close()
            finally:
                self._looking.release()

    def _complain(self, what: str, error: Exception) -> None:
        """Into the log, with where it came from; what fails the same way at every look is told once."""
        complaint = f"{what}: {type(error).__name__}: {error}"
        if complaint != self._complaint:
            self._complaint = complaint
            logger.warning(complaint, exc_info=error)
