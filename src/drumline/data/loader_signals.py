"""Signals in a loader process: whether and when a run stops is its rank's decision."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading

IGNORED = (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


def leave_signals_to_rank() -> None:
    """In a loader process: heed no signal that asks a run to stop, but SIGTERM from the process that started this one.

    Ctrl-C, timeout(1), systemd and some schedulers send a signal to the whole group, and the rank still needs rows to
    come to where it stops. SIGTERM from the rank is how multiprocessing ends a process, also one that is stuck outside
    of Python, which a handler would not reach; so it is blocked, and a thread waits for it.
    """
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    rank = multiprocessing.parent_process()
    assert rank is not None and rank.pid is not None
    threading.Thread(target=_wait_for_sigterm, args=(rank.pid,), name="sigterm", daemon=True).start()


def _wait_for_sigterm(rank: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != rank:
        pass
    os._exit(0)  # as torch's own handler does, which then reports no failure of this process
