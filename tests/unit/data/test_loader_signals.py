"""Loader processes and the signals that ask a run to stop."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from drumline.data.loader_signals import leave_signals_to_rank


def wait_for_word(connection: Connection) -> None:
    leave_signals_to_rank()
    connection.send("ready")
    connection.send(connection.recv())
    time.sleep(60)


def wait_until_taken(pid: int) -> None:
    """Until no signal is pending: a second SIGTERM would be one with it, since the kernel keeps no two of a kind."""
    status = Path(f"/proc/{pid}/status")
    for _ in range(500):
        if "\nShdPnd:\t0000000000000000\n" in status.read_text():
            return
        time.sleep(0.01)
    raise AssertionError(status.read_text())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_only_sigterm_from_the_rank_ends_a_loader_process(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=wait_for_word, args=(there,), daemon=True)
    process.start()
    assert here.recv() == "ready" and process.pid is not None
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(process.pid, number)
    # From somebody else, as a scheduler or timeout(1) sends it to a whole group.
    kill = f"import os; os.kill({process.pid}, {int(signal.SIGTERM)})"
    subprocess.run([sys.executable, "-S", "-c", kill], check=True)
    wait_until_taken(process.pid)
    here.send("still there")
    assert here.recv() == "still there"
    process.terminate()
    process.join(5)
    assert process.exitcode == 0
