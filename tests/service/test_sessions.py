"""Children that are run to their end, and given up where nobody waits for them any more."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from drumline.jobs.sessions import run_to_end


def sleeping(seconds: float) -> list[str]:
    return [sys.executable, "-S", "-c", f"import os, time; print(os.getpid(), flush=True); time.sleep({seconds})"]


async def give_up(command: list[str], log: Path) -> tuple[float, int]:
    """Seconds that the loop stood still when the task was cancelled, and the child."""
    task = asyncio.create_task(run_to_end(command, log))
    while not (log.exists() and log.read_text().endswith("\n")):
        await asyncio.sleep(0.02)
    began = time.monotonic()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return time.monotonic() - began, int(log.read_text())


def wait_until_reaped(pid: int) -> None:
    limit = time.monotonic() + 10
    while psutil.pid_exists(pid) or any(thread.name == f"reaper-{pid}" for thread in threading.enumerate()):
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_a_childs_status_is_told_and_no_thread_is_needed(tmp_path: Path) -> None:
    threads = threading.active_count()
    command = [sys.executable, "-S", "-c", "print('said'); raise SystemExit(7)"]
    assert asyncio.run(run_to_end(command, tmp_path / "log")) == 7
    assert (tmp_path / "log").read_text() == "said\n" and threading.active_count() == threads


def test_who_is_cancelled_leaves_no_child(tmp_path: Path) -> None:
    _, pid = asyncio.run(give_up(sleeping(60), tmp_path / "log"))
    wait_until_reaped(pid)


def test_a_child_that_the_kernel_does_not_let_go_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.killpg", lambda pid, signal: None)
    stood, pid = asyncio.run(give_up(sleeping(0.8), tmp_path / "log"))
    assert stood < 0.4 and psutil.pid_exists(pid)
    wait_until_reaped(pid)  # once it ends
