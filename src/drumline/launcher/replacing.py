"""What becomes of a run of independent workers when one of them ends: pure decisions."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import Literal

from drumline.launcher.failures import FIX_MARK, Failure
from drumline.launcher.independent_child import DISK_FULL
from drumline.launcher.lost_gpus import SICK

DONE, REFUSED, STOPPED = 0, 2, 3
"""Exit statuses of a worker: the whole run is done, it cannot be meant as it stands, it was asked to stop."""
MOST_VAIN = 3
"""Ends in a row of workers on the same GPUs that did not get as far as their first batch."""

Action = Literal["done", "refused", "stopped", "replace", "leave_out"]


@dataclass(frozen=True)
class End:
    """How one worker ended."""

    exit_code: int
    """As subprocess gives it: negative for a signal."""
    got_going: bool
    """Whether it had begun with its work."""
    failure: Failure | None = None
    """What it recorded, or what its exit code tells; None where it did not fail."""


@dataclass(frozen=True)
class Seat:
    """A worker's place on the machine: GPUs that it has for itself."""

    gpus: tuple[str, ...]
    """UUIDs; () on the CPU."""
    vain: int = 0
    """Ends in a row without work."""


@dataclass(frozen=True)
class Decision:
    """What happens at an end."""

    action: Action
    seat: Seat
    """As the next worker there finds it."""
    why: str = ""
    """For leave_out."""


def decide(seat: Seat, end: End, restarts_left: int, *, stopping: bool, others_work: bool = False) -> Decision:
    """Pure: what happens when a worker on this seat has ended so; stopping: the run was asked to stop before.

    others_work: whether another one has got going, so that what this one refuses cannot be the whole run.

    done: the whole run is over, and well. refused: all end. stopped: nobody follows on this seat. leave_out: the same,
    for the reason given. replace: a new worker starts there.
    """
    if end.exit_code == DONE:
        return Decision("done", seat)
    if end.exit_code == REFUSED:
        if others_work and not stopping:
            return Decision("leave_out", seat, "it cannot work as it stands, and others can")
        return Decision("refused", seat)
    if end.exit_code == STOPPED or stopping:
        return Decision("stopped", seat)
    after = replace(seat, vain=0 if end.got_going else seat.vain + 1)
    if reason := sickness(seat, end.failure):
        return Decision("leave_out", after, reason)
    if end.exit_code == DISK_FULL:
        return Decision("leave_out", after, "the disk is full, or may not be written to")
    if after.vain >= MOST_VAIN:
        return Decision("leave_out", after, f"{after.vain} workers in a row ended there before they had begun")
    if restarts_left < 1:
        return Decision("leave_out", after, "no restart is left (max_restarts)")
    return Decision("replace", after)


def sickness(seat: Seat, failure: Failure | None) -> str | None:
    """Pure: why a failure says that a GPU of this seat is lost; None where it does not."""
    if failure is None or not seat.gpus:
        return None
    text = failure.message.partition(FIX_MARK)[0].lower()
    return next((meaning for said, meaning in SICK.items() if said in text), None)


def outcome(ends: list[End], *, asked: signal.Signals | None) -> tuple[int, Failure | None]:
    """Pure: exit status of a run whose workers have all ended, in this order, and what it failed of.

    Well if one worker says that all is done, however the others ended.
    """
    codes = [end.exit_code for end in ends]
    if DONE in codes:
        return DONE, None
    refused = next((end for end in ends if end.exit_code == REFUSED), None)
    if refused is not None:
        return REFUSED, refused.failure
    if asked is not None or STOPPED in codes[-1:]:
        return STOPPED, None
    failures = [end.failure for end in ends if end.failure is not None]
    return (1, failures[-1]) if failures else (STOPPED, None)
