"""Where a thread is, and what state a process is in: what a report of a hang is made of."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import drumline
from drumline.launcher.failures import is_users
from drumline.parallel.heartbeats import Frame

DEPTH = 200
"""Frames that are looked at, so that a recursion without end costs no more."""
SHOWN = 8
"""Innermost lines of a stack that are kept."""

_OURS = f"{Path(drumline.__file__ or '').parent}/"
_COLLECTIVES = "/torch/distributed/distributed_c10d.py"

WAITS = "waits for the other ranks"
COLLECTIVE = "is in the collective "

_DOING = (
    (f"{_OURS}parallel/side_channel.py", WAITS),
    ("/torch/autograd/", "is in a backward pass"),
    ("/torch/utils/data/", "reads rows"),
    (f"{_OURS}data/", "reads rows"),
    ("/torch/optim/", "is in the optimizer's step"),
    ("/torch/nn/modules/module.py", "is in a forward pass"),
    (f"{_OURS}engine/callbacks.py", "is in a callback"),
    (f"{_OURS}engine/checkpoint", "is at a checkpoint"),
    (f"{_OURS}track/", "is in a tracker"),
    (f"{_OURS}engine/evaluate.py", "evaluates"),
)
"""Part of a file's name and what code in it does; of the innermost frame that one of them is of."""

_DEBUGGERS = ("/bdb.py", "/pdb.py", "/pydevd", "/debugpy/")

State = Literal["runs", "stopped", "dead", "unknown"]


def stack_of(thread: int) -> list[Frame]:
    """The stack of a thread by its identifier, innermost first; empty for one that has ended. No file is read."""
    frame, found = sys._current_frames().get(thread), list[Frame]()
    while frame is not None and len(found) < DEPTH:
        found.append(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return found


def line_of(stack: Sequence[Frame]) -> Frame | None:
    """The innermost line of the user's; without one the innermost of drumline's, and else of all."""
    own = (frame for frame in stack if is_users(frame.file))
    ours = (frame for frame in stack if frame.file.startswith(_OURS))
    return next(own, None) or next(ours, None) or next(iter(stack), None)


def doing(stack: Sequence[Frame]) -> str:
    """What somebody with this stack does, as the rest of a sentence; empty where it cannot be told."""
    for position, frame in enumerate(stack):
        if frame.file.endswith(_COLLECTIVES):
            inside = [f.function for f in stack[position:] if f.file.endswith(_COLLECTIVES)]
            return f"{COLLECTIVE}{inside[-1]}"
        for part, text in _DOING:
            if part in frame.file:
                return text
    return ""


def waits(stack: Sequence[Frame]) -> bool:
    """Whether the thread waits for other ranks, as far as Python's stack shows it."""
    return doing(stack).startswith((WAITS, COLLECTIVE))


def is_debugged(stack: Sequence[Frame]) -> bool:
    """Whether somebody sits before a debugger at this thread."""
    return any(part in frame.file for frame in stack for part in _DEBUGGERS)


def other_threads(but: Sequence[int]) -> Mapping[str, Sequence[Frame]]:
    """Stacks of the threads that Python started and that are in code of the user's, of drumline's or of torch's."""
    found = {}
    for thread in threading.enumerate():
        if thread.ident is None or thread.ident in but:
            continue
        stack = stack_of(thread.ident)
        if any(is_users(f.file) or f.file.startswith(_OURS) or "/torch/" in f.file for f in stack):
            found[thread.name] = tuple(stack[:SHOWN])
    return found


def process_space() -> str:
    """Where process numbers mean the same: the machine since its start and the container; empty where not known."""
    try:
        booted = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{booted} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def born(pid: int) -> int:
    """When a process was started, in clock ticks since the machine was; 0 for one that is not there (proc_pid_stat(5)).

    Ticks, because a clock that is set moves all other times.
    """
    found = _stat(pid)
    return 0 if found is None else found[1]


def state_of(pid: int, started: int) -> State:
    """What became of a process of this space whose `born` is known."""
    found = _stat(pid)
    if found is None or found[1] != started:  # the number may be another one's by now
        return "dead"
    letter = found[0]
    return "dead" if letter in "ZX" else "stopped" if letter in "Tt" else "runs"


def _stat(pid: int) -> tuple[str, int] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before may hold anything
    return fields[0], int(fields[19])
