"""The state machine of a job: an event comes in, the job as it then is and what is to be done come out. Pure."""

from __future__ import annotations

import signal as signals
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from drumline.jobs.events import (
    Asked,
    AskToStop,
    Began,
    End,
    Ended,
    Event,
    GivenUp,
    Gone,
    Granted,
    Heard,
    Instruction,
    Kill,
    Missing,
    Overdue,
    Refused,
    Release,
    Restarted,
    Silent,
    Started,
    StartKeeper,
    Stop,
    TellResult,
)
from drumline.jobs.records import ACTIVE_STATES, Job, State

__all__ = [
    "NODE_SILENT",
    "NO_CURE",
    "REASONS",
    "AskToStop",
    "Asked",
    "Began",
    "End",
    "Ended",
    "Event",
    "GivenUp",
    "Gone",
    "Granted",
    "Heard",
    "Instruction",
    "Kill",
    "Missing",
    "Overdue",
    "Refused",
    "Release",
    "Restarted",
    "Silent",
    "StartKeeper",
    "Started",
    "Step",
    "Stop",
    "TellResult",
    "handle",
]

INTERRUPTED, BAD_REQUEST = 3, 2
"""Exit statuses of our commands: saved and resumable; and what no other try makes better."""

START_S = 60.0
"""How long a keeper may take to claim its attempt before that counts as a start that failed."""
CLOCK_S = 1.0
"""By which two clocks may seem to differ that are read one after the other."""

SHORT_S = 60.0
"""An attempt that is interrupted by nobody of ours within this time is a short one."""
SHORT_TRIES = 3
"""How many of those in a row are borne, whatever the job's retries: a run that always ends so would begin for ever."""

NODE_SILENT = "node_silent"
"""Reason of an active job for as long as its machine does not answer."""

REASONS: Mapping[str, str] = MappingProxyType(
    {
        "cancelled": "somebody cancelled it",
        "preempted": "stopped for a job of higher priority; it goes on from its checkpoint",
        "resized": "stopped to go on with another number of devices",
        "interrupted": "its processes were asked to stop from outside; it goes on from its checkpoint",
        "restarted": "the machine was restarted; it goes on from its newest checkpoint",
        "retrying": "an attempt failed, and another one is made",
        "time_limit": "it has used up its time",
        "bad_request": "its settings, its model or its data are not what they would have to be",
        "killed": "a signal ended its processes",
        "launcher_killed": "its launcher vanished without a word, as after a SIGKILL",
        "not_started": "its processes could not be started",
        "hang": "no progress for longer than it may",
        "out_of_memory": "memory does not suffice even for the smallest piece of work",
        "diverged": "the loss or the gradient became NaN or infinite",
        "failed": "its command failed",
        "export_failed": "it was trained, and its model could not be written",
        "interrupted_often": "each of several attempts was interrupted shortly after it began",
        "files_missing": "its folder is gone",
        NODE_SILENT: "its machine does not answer; its processes may go on there",
        "node_lost": "its machine did not answer any more, and somebody gave it up",
    }
)
"""Reason codes and what each means."""

NO_CURE = frozenset({"bad_request", "diverged", "out_of_memory", "interrupted_often"})
"""Reasons of failures that another try would meet again."""

_BY_CODE = {
    "config": "bad_request",
    "data": "bad_request",
    "value_range": "bad_request",
    "missing_extra": "bad_request",
    "hang": "hang",
    "out_of_memory": "out_of_memory",
    "non_finite": "diverged",
}
"""Reasons by the code of the error that ended a run."""

_DONE: Mapping[Stop, str] = {"resize": "resized", "preempt": "stopped", "time_limit": "ended", "cancel": "cancelled"}
_UNSEEN = "nobody has looked after it since"
"""So begins what is said of a job whose machine is silent."""
_STRENGTH: Mapping[Stop, int] = {"resize": 0, "preempt": 0, "time_limit": 1, "cancel": 2}


@dataclass(frozen=True)
class Step:
    """A job after an event, and what that calls for once it is kept so; each instruction may be done again.

    The supervisor obeys Kill and Release. Starting, stopping and the result follow from the job's state at every look,
    so that nothing is left undone where a service was killed between the two.
    """

    job: Job
    do: tuple[Instruction, ...] = ()


def handle(job: Job, event: Event) -> Step:
    """What becomes of a job by an event; one that does not fit leaves it as it is, and an end state is final."""
    if job.has_ended or getattr(event, "attempt", None) not in (None, job.attempt):
        return Step(job)
    match event:
        case Missing(now):
            return _missing(job, now)
        case Asked(stop, now, by):
            return _asked(job, stop, now, by)
        case Granted(devices, now):
            return _granted(job, devices, now)
        case Silent(since, _):
            return _silent(job, since)
        case Heard(_):
            return Step(replace(job, reason=None, message=_own_words(job), fix="") if _is_silent(job) else job)
        case GivenUp(seen, now, by):
            return _given_up(job, seen, now, by)
    return _of_attempt(job, event) if job.state in ACTIVE_STATES else Step(job)


def with_the_clock(job: Job, now: float, since_boot: float) -> Job:
    """The job, its attempt's beginning as the clock that says `now` would have told it, however often that was set.

    since_boot: seconds since the machine's start, as job.pid_began.
    """
    if job.attempt_began is None or job.pid_began is None:
        return job
    ran_s = since_boot - job.pid_began
    # A keeper begins within START_S of the grant; one that has yet to begin is of before the machine's last start.
    if ran_s < 0 or -CLOCK_S <= now - job.attempt_began - ran_s <= START_S + CLOCK_S:
        return job
    return replace(job, attempt_began=now - ran_s)


def _of_attempt(job: Job, event: Started | Began | Overdue | Ended | Refused | Gone | Restarted) -> Step:
    """What is told of an attempt that goes on."""
    match event:
        case Started(pid, pid_began, _):
            return _started(job, pid, pid_began)
        case Began(_):
            return Step(replace(job, state="running") if job.state == "starting" else job)
        case Overdue(_):
            return Step(job, (Kill(),) if job.state == "stopping" else ())
        case Ended(end, now):
            return _ended(job, end, now)
        case Refused(reason, message, fix, now):
            return _stopped(job, now) or _failed(job, reason if reason in REASONS else "not_started", message, fix, now)
        case Gone(now):
            fix = "see its log; the kernel's log tells of processes that were killed for memory"
            return _stopped(job, now) or _failed(job, "launcher_killed", REASONS["launcher_killed"], fix, now)
        case Restarted(now, _, ran_s):
            job = replace(job, attempt_began=now - ran_s)
            # It may be this job that takes the machine down.
            return _stopped(job, now) or _interrupted(job, "restarted", "", now)


def _granted(job: Job, devices: tuple[str, ...], now: float) -> Step:
    if job.state != "queued" or not devices:
        return Step(job)
    job = replace(
        job,
        state="starting",
        devices=devices,
        attempt=job.attempt + 1,
        attempt_began=now,
        started=now if job.started is None else job.started,
        reason=None,
        message="",
        fix="",
        waits_for="",
    )
    return Step(job, (StartKeeper(),))


def _started(job: Job, pid: int, pid_began: float) -> Step:
    if job.pid is not None:
        return Step(job)
    job = replace(job, pid=pid, pid_began=pid_began)
    # It was asked to stop before there was anybody to ask.
    return Step(job, (AskToStop(),) if job.state == "stopping" else ())


def _asked(job: Job, stop: Stop, now: float, by: str) -> Step:
    message = f"{_DONE[stop]} by {by}" if by else ""
    if job.state == "queued":
        if stop == "cancel":
            return _over(job, "cancelled", "cancelled", message, "", now)
        return _over(job, "timed_out", "time_limit", message, "", now) if stop == "time_limit" else Step(job)
    if job.state == "stopping":
        stronger = job.stop is None or _STRENGTH[stop] > _STRENGTH[job.stop]
        return Step(replace(job, stop=stop, message=message) if stronger else job)
    job = replace(job, state="stopping", stop=stop, stop_asked=now, message=message)
    return Step(job, (AskToStop(),) if job.pid is not None else ())


def _missing(job: Job, now: float) -> Step:
    fix = "start it anew; files of jobs are not to be moved or removed by hand"
    step = _over(job, "lost", "files_missing", REASONS["files_missing"], fix, now)
    if job.state not in ACTIVE_STATES:
        return step
    # Its process, if one is left, is still to be found by the number.
    return Step(replace(step.job, pid=job.pid, pid_began=job.pid_began), (Kill(), *step.do))


def _silent(job: Job, since: float) -> Step:
    if job.state not in ACTIVE_STATES or _is_silent(job):
        return Step(job)
    moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(since))
    message = f"{_UNSEEN} {moment}: node {job.node} does not answer"
    if words := _own_words(job):
        message = f"{words}; {message}"
    fix = f"wait for {job.node}; where it is gone for good, cancel the job, which then ends as lost"
    return Step(replace(job, reason=NODE_SILENT, message=message, fix=fix))


def _own_words(job: Job) -> str:
    """What a stop has said of itself, without what is said of a silent machine."""
    return job.message.partition(_UNSEEN)[0].removesuffix("; ") if job.state == "stopping" else ""


def _is_silent(job: Job) -> bool:
    return job.state in ACTIVE_STATES and job.reason == NODE_SILENT


def _given_up(job: Job, seen: float, now: float, by: str) -> Step:
    if not _is_silent(job):
        return Step(job)
    if job.attempt_began is not None:
        job = replace(job, attempt_began=now - max(0.0, seen - job.attempt_began))
    message = f"given up by {by}; {job.message}"
    fix = f"send its request again; what it has written lies on {job.node}, which ends its processes once it answers"
    return _over(job, "lost", "node_lost", message, fix, now)


def _ended(job: Job, end: End, now: float) -> Step:
    if end.exit_status == 0:
        return _over(job, "succeeded", None, "", "", now)
    interrupted = end.exit_status == INTERRUPTED
    if job.stop in ("cancel", "time_limit") or interrupted or end.signal is not None:
        step = _stopped(job, now)
        if step is not None:
            return step
    if interrupted:
        return _interrupted(job, "interrupted", end.message, now)
    reason = _reason(end)
    message = end.message or REASONS[reason] + ("" if end.signal is None else f" ({_name(end.signal)})")
    return _failed(job, reason, message, end.fix or "see its log", now)


def _stopped(job: Job, now: float) -> Step | None:
    """What its end means where it was asked to stop; None where nobody asked."""
    match job.stop:
        case "cancel":
            return _over(job, "cancelled", "cancelled", job.message, "", now)
        case "time_limit":
            fix = "retry it from its checkpoint with a higher time_limit_s"
            return _over(job, "timed_out", "time_limit", REASONS["time_limit"], fix, now)
        case "preempt":
            return _queued_again(job, "preempted", now)
        case "resize":
            return _queued_again(job, "resized", now)
    return None


def _interrupted(job: Job, reason: str, message: str, now: float) -> Step:
    if _ran_s(job, now) < SHORT_S:
        job = replace(job, interruptions=job.interruptions + 1)
        if job.interruptions > SHORT_TRIES:
            fix = "see its log for who stops it; time limits belong into resources.time_limit_s"
            return _over(job, "failed", "interrupted_often", REASONS["interrupted_often"], fix, now)
    return _queued_again(job, reason, now, message)


def _failed(job: Job, reason: str, message: str, fix: str, now: float) -> Step:
    if reason not in NO_CURE and job.failures < job.resources.retries:
        return _queued_again(replace(job, failures=job.failures + 1), "retrying", now, message)
    return _over(replace(job, failures=job.failures + 1), "failed", reason, message, fix, now)


def _reason(end: End) -> str:
    if end.exit_status == BAD_REQUEST:
        return "bad_request"
    if end.code in _BY_CODE:
        return _BY_CODE[end.code]
    if end.step == "export":
        return "export_failed"
    return "failed" if end.signal is None else "killed"


def _name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def _queued_again(job: Job, reason: str, now: float, message: str = "") -> Step:
    """The same job waits for devices again, at the place that it had; it goes on in its run directory."""
    job = replace(_without_process(job, now), state="queued", devices=(), reason=reason)
    return Step(replace(job, message=message or REASONS[reason], fix=""), (Release(),))


def _over(job: Job, state: State, reason: str | None, message: str, fix: str, now: float) -> Step:
    held = job.state in ACTIVE_STATES
    job = replace(_without_process(job, now), state=state, reason=reason, message=message, fix=fix)
    job = replace(job, ended=now, waits_for="")
    return Step(job, (Release(), TellResult()) if held else (TellResult(),))


def _without_process(job: Job, now: float) -> Job:
    ran_s = _ran_s(job, now)
    interruptions = 0 if ran_s >= SHORT_S else job.interruptions
    job = replace(job, used_s=job.used_s + ran_s, interruptions=interruptions)
    return replace(job, attempt_began=None, pid=None, pid_began=None, stop=None, stop_asked=None)


def _ran_s(job: Job, now: float) -> float:
    return 0.0 if job.attempt_began is None else max(0.0, now - job.attempt_began)
