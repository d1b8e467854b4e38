"""Processes that are found again by whoever looks after them next: by number and beginning, and by their mark."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

MARK = "DRUMLINE_JOB"
"""Variable in the environment of every process of an attempt: job and number of the attempt."""
LIMIT_S = 2.0
"""How long killed processes are waited for; the driver may keep one for longer."""
_LOOK_S = 0.01
_PROC = Path("/proc")
_START_FIELD, _STATE_FIELD = 22, 3
"""Of /proc/PID/stat, numbered as in proc(5)."""


def mark_of(job_id: str, attempt: int) -> str:
    """The value of MARK for an attempt."""
    return f"{job_id}/{attempt}"


def began_of(pid: int) -> float | None:
    """Seconds between the machine's start and the process's own; None once it has ended, waited for or not.

    With the number it names a process for good. Not the time of day: that is reckoned anew, and may be another, each
    time the clock is set.
    """
    try:
        # Its name, in brackets, may hold anything.
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[_START_FIELD - _STATE_FIELD]) / os.sysconf("SC_CLK_TCK")


def is_alive(pid: int, began: float) -> bool:
    """Whether the process with this number is still the one that began then."""
    return began_of(pid) == began


@cache
def machine_id() -> str:
    """Another one where the processes of before are gone or cannot be seen: after a start of the machine, or of the
    container that this is in, and in another container.
    """
    boot = names = "unknown"
    with suppress(OSError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):  # two containers may have begun in the same hundredth of a second
        names = str((_PROC / "self/ns/pid").readlink())
    return f"{boot}/{began_of(1)}/{names}"


def since_boot() -> float:
    """Seconds since the machine's start, as began_of() counts them, whatever its clock is set to."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def send(pid: int, began: float, number: signal.Signals) -> bool:
    """Send a signal to this very process; False where it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError:  # an old kernel, or a container that forbids it
        return is_alive(pid, began) and _kill(pid, number)
    try:
        # From here on the number cannot become another's.
        if not is_alive(pid, began):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def _kill(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def marks() -> dict[str, list[int]]:
    """Every living process of any attempt but this one, by the attempt's mark, whoever its parent is now."""
    begins = f"{MARK}=".encode()
    found: dict[str, list[int]] = {}
    for pid in _pids():
        if pid != os.getpid():
            for entry in _environment(pid):
                if entry.startswith(begins):
                    found.setdefault(os.fsdecode(entry[len(begins) :]), []).append(pid)
    return found


def marked(mark: str) -> list[int]:
    """Those of one attempt."""
    return marks().get(mark, [])


def end_marked(mark: str, limit_s: float = LIMIT_S) -> list[int]:
    """Kill every process of an attempt but this one; returns those that live on after limit_s."""
    limit = time.monotonic() + limit_s
    were_found = False
    # One that was killed may have started another just before: look again until nobody is left. And once more then,
    # for the environment of a process that is just being executed is empty for a moment.
    while (found := marked(mark)) or were_found:
        were_found = bool(found)
        for pid in found:
            began = began_of(pid)
            if began is not None and f"{MARK}={mark}".encode() in _environment(pid):
                send(pid, began, signal.SIGKILL)
        if time.monotonic() > limit:
            return marked(mark)
        time.sleep(_LOOK_S)
    return []


def _pids() -> Iterator[int]:
    with os.scandir(_PROC) as entries:
        yield from (int(entry.name) for entry in entries if entry.name.isdecimal())


def _environment(pid: int) -> list[bytes]:
    # Ended meanwhile, or another user's: not of ours.
    with suppress(OSError):
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return []
