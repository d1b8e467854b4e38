"""Processes that must not outlive their launcher: bound to their parent's life, and found by a mark when it failed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

import psutil

from drumline.launcher.spec import MARK

_PR_SET_PDEATHSIG = 1
_SWEEP_LIMIT_S = 2.0


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
