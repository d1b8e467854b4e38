"""Processes that must not outlive their launcher: bound to their parent's life, and found by a mark when it failed."""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from drumline.launcher.spec import MARK, LaunchSpec

logger = logging.getLogger("drumline")

_PR_SET_PDEATHSIG = 1
_SWEEP_LIMIT_S = 2.0
_AGENT_MARGIN_S = 2.0
"""What the agent may need beyond the workers' grace before they take their launcher's end into their own hands."""


def die_with_parent(number: signal.Signals, parent: int) -> None:
    """Ask the kernel to send this process a signal when its parent ends (prctl(2), PR_SET_PDEATHSIG).

    Call it first thing in a child; one whose parent, by pid, has ended already is killed. Linux only: elsewhere it does
    nothing and a killed launcher leaves its workers behind.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def pipe_of(spec: LaunchSpec) -> Path:
    """The named pipe that a launcher holds open while it lives; hidden, since whoever reads logs/* would wait at it."""
    return spec.run.logs / ".launcher.pipe"


@contextmanager
def held_pipe(spec: LaunchSpec) -> Iterator[None]:
    """Inside, the workers can tell that this process lives; the kernel tells them when it does not any more.

    Torch elastic starts the workers, and closes what they would inherit: so the pipe has a name. A file system that
    knows none leaves the launch with the signal of `die_with_parent` alone.
    """
    path = pipe_of(spec)
    path.unlink(missing_ok=True)
    try:
        os.mkfifo(path, 0o600)
        # For reading too: to open it for writing alone would wait for a reader.
        held = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        logger.debug("the workers will not see the launcher's end by a pipe: %s", error)
        path.unlink(missing_ok=True)
        yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(held)


def end_with_launcher(spec: LaunchSpec, agent: int) -> None:
    """In a worker: kill it, all of its process group and its agent once the launcher has ended, after a grace.

    The agent, which ends its workers in good order, comes first unless it is stopped or stuck. Starts a thread.
    """
    try:
        pipe = os.open(pipe_of(spec), os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return  # held_pipe has said why there is none
    threading.Thread(
        target=_watch_pipe,
        args=(pipe, agent, spec.failure_grace_s + _AGENT_MARGIN_S),
        name="launcher's end",
        daemon=True,
    ).start()


def _watch_pipe(pipe: int, agent: int, grace_s: float) -> None:
    # Nobody writes: it can be read from only when nobody holds it any more, and then it is at its end.
    with suppress(BlockingIOError):
        if os.read(pipe, 1) == b"":  # gone before it was opened here, of which poll would not tell
            _end_all(agent, grace_s)
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    poll.poll()
    _end_all(agent, grace_s)


def _end_all(agent: int, grace_s: float) -> None:
    time.sleep(grace_s)
    if os.getppid() == agent:
        os.kill(agent, signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)


def end_marked(launch_id: str) -> list[int]:
    """Kill every other process of a launch, its loaders' and its scripts' children included; returns their pids.

    Any process that inherited the launch's environment is found, whoever its parent is now.
    """
    ended: set[int] = set()
    limit = time.monotonic() + _SWEEP_LIMIT_S
    # A killed process may have started another just before: look again until nobody is left.
    while (found := _marked(launch_id)) and time.monotonic() < limit:
        for process in found:
            ended.add(process.pid)
            _kill(process)
        time.sleep(0.02)
    return sorted(ended)


def _marked(launch_id: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if process.pid != os.getpid() and _mark(process) == launch_id]


def _mark(process: psutil.Process) -> str | None:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process.environ().get(MARK)
    except (psutil.Error, OSError):  # ended meanwhile, or another user's: not of this launch
        return None


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
