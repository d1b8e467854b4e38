"""`python -m drumline.monitor.record RUN`: watches a run's GPUs beside it, and ends with it, however that ends.

`engine.recorder` starts it; what to do comes on standard input, see `launcher.recording`.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from drumline.errors import DrumlineError
from drumline.launcher.processes import die_with_parent
from drumline.launcher.recording import END, PHASE, RecordingJob
from drumline.monitor.health_watch import HealthWatch
from drumline.monitor.recording import VERDICT_S, Recording, Sources

logger = logging.getLogger("drumline")

TICK_S = 1.0
LAST_S = 4
"""How long its own end may take; then the kernel ends it. A killed launcher's workers may take 5 s before."""
PARENTS_END_S = 1.0
"""How long a parent that is ending may still be there after its end of the pipe is."""
# What whoever stops a run sends to all of its processes: the run then saves and ends, and is watched to its end.
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Parent:
    """The worker whose run is watched: what it says through the pipe, and whether it lives."""

    def __init__(self, pipe: int, wake: int) -> None:
        """pipe: for reading. wake: can be read from when a signal has come."""
        self._pipe, self._wake = pipe, wake
        self._pid: int | None = None
        self._half = b""
        self._gone = False
        self.said_so = False
        """Whether it has said that the run has ended; one that was killed says nothing."""
        self.phases: list[str] = []
        """What it has said that the run goes over to, since this was last emptied."""
        self._poll = select.poll()
        for descriptor in (pipe, wake):
            self._poll.register(descriptor, select.POLLIN)

    def job(self) -> RecordingJob | None:
        """What it wants; None where it has ended before it said so."""
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._pipe, 1)
            if not byte:
                return None
            line += byte
        job = RecordingJob.from_line(line)
        self._pid = job.parent
        return job

    def has_ended(self, wait_s: float) -> bool:
        """Whether the run or the parent has ended, by the pipe or by its pid; waits up to wait_s for either.

        Its loader processes hold the pipe open too, so that a parent which was killed is told by the pid alone.
        """
        for descriptor, _ in self._poll.poll(1000 * wait_s):
            if descriptor == self._wake:
                os.read(self._wake, 4096)
            else:
                self._hear(os.read(self._pipe, 4096))
        return self.said_so or self._gone or os.getppid() != self._pid

    def _hear(self, words: bytes) -> None:
        if not words:
            self._gone = True
            self._await_end()
        *lines, self._half = (self._half + words).split(b"\n")
        for line in (each.decode() for each in lines):
            self.said_so |= line == END
            if line.startswith(PHASE):
                self.phases.append(line.removeprefix(PHASE))

    def _await_end(self) -> None:
        limit = time.monotonic() + PARENTS_END_S
        while os.getppid() == self._pid and time.monotonic() < limit:
            time.sleep(0.01)


def main(arguments: Sequence[str], sources: Sources | None = None) -> int:
    """Record until the parent ends; returns the exit status. sources: what is looked at; None: this machine."""
    with woken_by_signals() as wake:
        parent = Parent(sys.stdin.fileno(), wake)
        job = parent.job()
        if job is None:
            return 0
        die_with_parent(signal.SIGTERM, job.parent)  # which wakes; see `woken_by_signals`
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
        if sources is None:
            sources = Sources(health=HealthWatch() if job.gpus else None)
        try:
            recording = Recording(job, sources)
        except DrumlineError as error:
            logger.error("nothing is recorded: %s", error)
            return error.exit_status
        logger.info("recording %s of %s", ", ".join(job.gpus) or "no GPU", " ".join(arguments))
        recording.start()
        wait_s = min(TICK_S, job.every_s)
        while not parent.has_ended(wait_s):
            while parent.phases:
                recording.enter(parent.phases.pop(0))
            recording.tick()
        # From here on nobody waits: a file system or a driver that hangs must not keep it.
        signal.alarm(LAST_S + VERDICT_S)
        recording.await_verdict()
        signal.alarm(LAST_S)
        recording.close()
    return 0


@contextmanager
def woken_by_signals() -> Iterator[int]:
    """Inside, SIGTERM and what stops a run end nothing; SIGTERM can be read from the descriptor that this gives.

    After one that tells of the parent's end the kernel ends this process in LAST_S + VERDICT_S at the latest.
    """
    reader, writer = socket.socketpair()
    for end in (reader, writer):
        end.setblocking(False)
    first = os.getppid()

    def limit(number: int, frame: FrameType | None) -> None:
        if os.getppid() != first and signal.getitimer(signal.ITIMER_REAL)[0] == 0.0:  # which alarm sets
            signal.alarm(LAST_S + VERDICT_S)

    before = {number: signal.signal(number, signal.SIG_IGN) for number in _IGNORED}
    before[signal.SIGTERM] = signal.signal(signal.SIGTERM, limit)
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield reader.fileno()
    finally:
        signal.alarm(0)
        signal.set_wakeup_fd(previous)
        for number, handler in before.items():
            signal.signal(number, handler)
        reader.close()
        writer.close()


if __name__ == "__main__":
    # Past the interpreter's end, which would wait for no daemon thread, but for what libraries have registered.
    status = main(sys.argv[1:])
    logging.shutdown()
    os._exit(status)
