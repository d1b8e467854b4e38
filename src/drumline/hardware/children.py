"""Other programs asked under a time limit; one that hangs in a driver cannot take this process along."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_KILL_LIMIT_S = 5.0
"""How long a killed child may take to go; one that waits inside a driver never does."""


@dataclass(frozen=True)
class Ended:
    """What a child wrote, and how it ended."""

    status: int
    """Exit status; minus the signal's number where one ended it."""
    output: str
    complaint: str

    @property
    def last_words(self) -> str:
        """The last line that it wrote to its error stream, for a message."""
        return (self.complaint.strip().splitlines() or ["no message"])[-1]


@dataclass(frozen=True)
class NotEnded:
    """A child that was killed at its limit."""

    why: str
    """Goes on the sentence that says who: 'gave no answer within 5 s'."""


def finish(command: Sequence[str], limit_s: float, environ: Mapping[str, str] | None = None) -> Ended | NotEnded:
    """Run a program to its end, with nothing to read; it is killed after limit_s seconds.

    environ: of the child; None: this process's own. Bytes that are no UTF-8 come as replacement characters. Raises
    OSError where the program cannot be started.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env=environ,
    )
    try:
        output, complaint = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return NotEnded(f"gave no answer within {limit_s:g} s{_end(child)}")
    except BaseException:
        _end(child)
        raise
    return Ended(child.returncode, output, complaint)


def _end(child: subprocess.Popen[str]) -> str:
    """Kill the child; what to add to the report where even that does not end it."""
    child.kill()
    try:
        child.communicate(timeout=_KILL_LIMIT_S)
    except subprocess.TimeoutExpired:
        # Nothing can end a process that waits inside a driver, so nothing may wait for it.
        return f", and process {child.pid} cannot be killed: a driver hangs"
    return ""
