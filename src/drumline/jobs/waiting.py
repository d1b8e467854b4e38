"""Why a queued job does not run yet, in a sentence for people. None changes while nothing changes for the job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drumline.jobs.fleet import Fleet
from drumline.jobs.placement import suits
from drumline.jobs.records import Job

MOST_NAMED = 3
GIB = 2**30


def too_large(job: Job, fleet: Fleet) -> str:
    """The machine does not have what it asks for, whoever holds what."""
    if job.resources.gpus:
        there = {device.id for device in fleet.inventory.devices}
        missing = [name for name in job.resources.gpus if name not in there]
        if missing:
            return f"asks for {_asked(job, fleet)}: this machine has no {_listed(missing)}"
    has = len(fleet.inventory.devices)
    if has < job.resources.least:
        return f"asks for {_asked(job, fleet)} and this machine has {has}"
    enough = fleet.machine.count(job.resources)
    have = "none has" if enough == 0 else f"{enough} has" if enough == 1 else f"{enough} have"
    return f"asks for {_asked(job, fleet)}: of the {has} of this machine {have} so much"


def unusable(job: Job, fleet: Fleet) -> str:
    """It could start if all devices could be used."""
    usable, gpus = fleet.usable.count(job.resources), job.resources.gpus
    why = [
        f"{device.id}: {_told(device.unusable)}"
        for device in fleet.inventory.devices
        if device.unusable is not None and (not gpus or device.id in gpus)
    ]
    number = f"only {usable}" if usable else "none"
    return f"waits for {_asked(job, fleet)}: {number} can be used now ({_listed(why)})"


def stopping(job: Job, fleet: Fleet) -> str:
    """Others make room for it."""
    who, have = _jobs(fleet.leaving, job, fleet)
    return f"starts with {_asked(job, fleet)} as soon as {who} {have} stopped"


def first(job: Job, free: int, fleet: Fleet) -> str:
    """It is the first that waits; `free`: devices that are kept for it."""
    held = [name for name, devices in fleet.held.items() if any(suits(device, job.resources) for device in devices)]
    who, have = _jobs([name for name in held if name not in fleet.leaving] or held, job, fleet)
    others = f", {who} {have} the others" if who else ""
    return f"waits for {_asked(job, fleet)}: {_are(free)} free{others}"


def behind(job: Job, fleet: Fleet) -> str:
    """Others come first. It names none of them and no numbers, which would change with every start of a job."""
    return f"waits for {_asked(job, fleet)}: jobs that come before it get what is free"


def _asked(job: Job, fleet: Fleet) -> str:
    least, memory = job.resources.least, job.resources.memory_bytes
    noun = "GPU" if fleet.inventory.has_gpus else "slot"
    size = "" if memory is None else f" with {memory / GIB:.3g} GiB free{' each' if least > 1 else ''}"
    among = f" out of {_listed(job.resources.gpus)}" if job.resources.gpus else ""
    return f"{least} {noun}{'s' if least > 1 else ''}{size}{among}"


def _listed(words: Sequence[str]) -> str:
    """The first of them, and how many more."""
    return ", ".join(words[:MOST_NAMED]) + (f" and {len(words) - MOST_NAMED} more" if len(words) > MOST_NAMED else "")


def _are(number: int) -> str:
    return "none is" if number == 0 else f"{number} is" if number == 1 else f"{number} are"


def _jobs(names: Iterable[str], job: Job, fleet: Fleet) -> tuple[str, str]:
    """These jobs in words, with the verb that goes with them: its owner's own by name, others' only by number."""
    names = sorted(names)
    known = [name for name in names if fleet.owners.get(name) == job.owner][:MOST_NAMED]
    rest = len(names) - len(known)
    if rest:
        noun = "job" if rest == 1 else "jobs"
        known.append(f"{rest} other {noun}" if known or rest > 1 else f"another {noun}")
    *before, last = known or [""]
    return f"{', '.join(before)} and {last}" if before else last, "has" if len(names) == 1 else "have"


def _told(reason: str) -> str:
    """Why a device cannot be used; whose process is on it is not for every owner of a job to know."""
    return "taken by somebody else" if reason.startswith(("taken", "claimed")) else reason
