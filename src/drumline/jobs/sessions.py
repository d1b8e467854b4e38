"""Children with a session of their own, watched from an event loop that never waits for them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

LOOK_S = 0.1
"""Between two looks whether a child has ended."""


class Session:
    """A running child, leader of a session: what it leaves in its process group is ended with it.

    It outlives this process, and a terminal's Ctrl-C does not reach it.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """Start it; both of its streams are appended to `log`, which its owner alone may read."""
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=descriptor, stderr=descriptor, start_new_session=True
            )
        finally:
            os.close(descriptor)
        self.pid = self._child.pid

    async def wait(self) -> int:
        """Its exit status, minus the signal's number where one ended it."""
        while not self._has_ended():
            await asyncio.sleep(LOOK_S)
        self._sweep()
        return self._child.wait()

    def ask_to_stop(self) -> None:
        """Send SIGTERM, on which a run saves and ends."""
        if not self._has_ended():
            self._child.terminate()

    def kill(self) -> None:
        """End it at once, with all of its group; the workers of a run are ended by its launcher's end."""
        if self._child.returncode is None:
            self._sweep()
            self._child.wait()

    def abandon(self) -> None:
        """End it at once as kill does, without waiting: a child that the kernel does not let go is waited for aside."""
        if self._child.returncode is None:
            self._sweep()
            if self._child.poll() is None:
                threading.Thread(target=self._child.wait, name=f"reaper-{self.pid}", daemon=True).start()

    def _has_ended(self) -> bool:
        """Whether it has; it is not reaped, so that its number stays its own."""
        if self._child.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # a program that ignores SIGCHLD has no exit status of any child
            return True

    def _sweep(self) -> None:
        if self._child.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


async def run_to_end(command: Sequence[str], log: Path) -> int:
    """Run a child to its end and give its exit status; it is ended where the task is cancelled."""
    session = Session(command, log)
    try:
        return await session.wait()
    finally:
        session.abandon()
