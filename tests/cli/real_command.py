"""The real command `drumline` in a folder, and what it left there; every launch in these tests is a real one."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from drumline.launcher.spec import MARK
from drumline.rundir import RunDir, read_json

COMMAND = Path(sys.executable).with_name("drumline")
RECIPE = """
name: tiny
data: {kind: text, train: [text.txt], eval: [held_out.txt], context: 16}
model: {num_layers: 1, num_heads: 2, width: 16}
train: {global_batch: 8, max_steps: 6, lr: 0.003}
checkpoint: {every: 4}
track: {every: 2}
hardware: {device: cpu, num_processes: 2}
"""
USUAL_PORT_LOCK = Path(tempfile.gettempdir()) / "drumline-tests-port-8000.lock"
"""Held by a test while it has the service on its usual port; tests of other files run at the same time."""
LIMIT_S = 10.0
"""From the first failing rank's record, or from a signal, to the end of the command and of every process of it."""


@contextmanager
def usual_port() -> Iterator[None]:
    """Wait until no other test has the service on its usual port, and keep it meanwhile."""
    with USUAL_PORT_LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    status: int
    out: str
    err: str
    took_s: float
    ended: float
    """Seconds since 1970."""

    @property
    def last_lines(self) -> list[str]:
        """The two last lines on screen; results come before errors there."""
        return (self.out + self.err).splitlines()[-2:]


class Command:
    """`drumline` with these arguments, running in `folder`; as a context it is killed if the test ends before it."""

    def __init__(self, folder: Path, *arguments: str, before: Sequence[str] = ()) -> None:
        """before: a program that starts it."""
        pipe, command = subprocess.PIPE, [*before, str(COMMAND), *arguments]
        self._began = time.time()
        self._process = subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        """Leave nothing behind where the test has failed: the kernel takes the workers with their launcher."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    @property
    def pid(self) -> int:
        """Of the command itself."""
        return self._process.pid

    def kill(self) -> None:
        """As kill -9 does; its workers end with it."""
        self._process.kill()
        self._process.communicate()

    def reaches(self, true: Callable[[], object], limit_s: float = 60.0) -> None:
        """Wait until something is true of the command; fails after limit_s, or when it ends before."""
        limit = time.monotonic() + limit_s
        while not true():
            assert self._process.poll() is None, self._process.communicate()
            assert time.monotonic() < limit, f"not within {limit_s} s"
            time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the command alone."""
        self._process.send_signal(number)

    def wait(self) -> Ended:
        """Wait for its end; one that does not come within two minutes fails the test."""
        with self:
            out, err = self._process.communicate(timeout=300)
        now = time.time()
        return Ended(self._process.returncode, out, err, now - self._began, now)


def write_recipe(folder: Path) -> Path:
    """Put tiny.yaml, a run of six updates on two ranks, and its text into a folder; returns the folder."""
    (folder / "tiny.yaml").write_text(RECIPE)
    (folder / "text.txt").write_text("Call me Ishmael. Some years ago, never mind how long precisely.\n" * 40)
    (folder / "held_out.txt").write_text("Whenever I find myself growing grim about the mouth.\n" * 4)
    return folder


def processes_of(launch: RunDir) -> list[psutil.Process]:
    """Processes of a launch that run now, found by the mark that all of them inherit."""
    launch_id = read_json(launch.logs / "launch.json")["launch_id"]
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == launch_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):  # gone meanwhile
            continue
    return found


def worker_of(launch: RunDir, rank: int) -> psutil.Process:
    """The process of one rank."""
    [worker] = [
        process
        for process in processes_of(launch)
        if process.environ().get("RANK") == str(rank) and "drumline.launcher.child" in process.cmdline()
    ]
    return worker


def failed_at(launch: RunDir) -> float:
    """When the first rank recorded its failure, in seconds since 1970."""
    return min(float(read_json(path)["time"]) for path in launch.logs.glob("rank_*.error.json"))


def launch_of(folder: Path) -> RunDir:
    """The one launch of a script in `folder`."""
    [path] = (folder / "runs/launch").iterdir()
    return RunDir(path)


def end_of(run: RunDir) -> dict[str, Any]:
    """What exit.json says."""
    end: dict[str, Any] = read_json(run.exit)
    return end
