"""Whether the service does its work: each part a named check, with what is wrong and what to do. Mostly pure."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from drumline.errors import DrumlineError
from drumline.hardware.occupants import occupants
from drumline.jobs.records import Inventory, Lease
from drumline.plan.devices import count
from drumline.service.machine import MachineLook

Status = Literal["ok", "degraded", "failing"]
GRAVITY: Mapping[Status, int] = {"ok": 0, "degraded": 1, "failing": 2}

BEAT_LATE_S = 10.0
"""Seconds without a sign of life after which nobody looks after the jobs; it is given several times a second."""
SLOW_STORE_S = 1.0
"""From here on the store answers too slowly for lists and ticks."""
LEAST_FREE_BYTES, LOW_FREE_BYTES = 1 << 30, 10 << 30
"""A checkpoint of a small model does not fit below the first; one of a usual model does not below the second. Ours."""
GIB = 1 << 30
TAKEN = "taken by a process outside of this service"


@dataclass(frozen=True)
class Check:
    """What was found of one part."""

    name: str
    status: Status
    message: str
    fix: str = ""


def gravest(checks: Sequence[Check]) -> Status:
    """Pure: the status of all of them together."""
    return max((check.status for check in checks), key=GRAVITY.__getitem__, default="ok")


def check_store(ask: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> Check:
    """Whether the store answers; `ask` is a small question to it."""
    began = clock()
    try:
        ask()
    except DrumlineError as error:
        return Check("store", "failing", error.problem, error.fix)
    took = clock() - began
    message = f"answers in {1000 * took:.0f} ms"
    if took > SLOW_STORE_S:
        return Check("store", "degraded", message, "see what else uses its disk or server")
    return Check("store", "ok", message)


def check_supervisor(newest_beat: float | None, now: float) -> Check:
    """Pure: whether somebody looks after the jobs of this machine. newest_beat: seconds since 1970."""
    fix = "see the log of drumline serve; jobs that run go on meanwhile"
    if newest_beat is None:
        return Check("supervisor", "failing", "nobody starts or watches jobs on this machine", fix)
    age = max(0.0, now - newest_beat)
    if age > BEAT_LATE_S:
        return Check("supervisor", "failing", f"its last sign of life is {age:.0f} s old", fix)
    return Check("supervisor", "ok", "starts and watches jobs")


def check_nodes(silent: Mapping[str, int]) -> Check:
    """Pure: whether other machines on the same store look after their jobs. silent: jobs of those that do not."""
    if not silent:
        return Check("nodes", "ok", "no other machine has left its jobs alone")
    told = ", ".join(f"{node} does not answer ({count(num, 'job')})" for node, num in sorted(silent.items()))
    fix = "start its service again; where it is gone for good, cancel its jobs, or give it up when cleaning up"
    return Check("nodes", "degraded", told, fix)


def check_disk(folder: Path, usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage) -> Check:
    """Whether there is room for checkpoints below the data directory."""
    fix = "remove runs that are not needed, or POST /multigpu/resources/manage with action cleanup"
    try:
        whole, _, free = usage(folder)
    except OSError as error:
        return Check("disk", "failing", f"{folder.name} cannot be read: {error.strerror}", "see that its disk is there")
    message = f"{free / GIB:.1f} of {whole / GIB:.1f} GiB are free for runs"
    if free < LEAST_FREE_BYTES:
        return Check("disk", "failing", message, fix)
    return Check("disk", "degraded" if free < LOW_FREE_BYTES else "ok", message, fix if free < LOW_FREE_BYTES else "")


def check_driver(look: MachineLook) -> Check:
    """Pure: whether the driver answers; a machine without GPU has none, and nothing is wrong."""
    fix = "see drumline doctor"
    if look.late is not None:
        return Check("driver", "degraded", look.late, fix)
    snapshot = look.snapshot
    if snapshot.problems:
        return Check("driver", "degraded", "; ".join(snapshot.problems), fix)
    if not snapshot.gpus and not snapshot.no_gpu:
        return Check("driver", "degraded", snapshot.source, fix)
    return Check("driver", "ok", snapshot.source if snapshot.gpus else f"this machine has no GPU ({snapshot.source})")


def check_gpus(look: MachineLook, inventory: Inventory, leases: Mapping[str, Lease]) -> Check:
    """Pure: whether jobs can have all GPUs. leases: by device."""
    if not inventory.devices:
        why = "not looked at yet" if inventory.time == 0 else "there is no device that a job could be given"
        return Check("gpus", "degraded" if inventory.time == 0 else "failing", why, "see drumline gpus")
    noun = "GPUs" if inventory.has_gpus else "slots"
    # Everybody who has a key reads this: whose process it is, is not told.
    wrong = {
        device.id: TAKEN if device.unusable.startswith(("taken", "claimed")) else device.unusable
        for device in inventory.devices
        if device.unusable
    }
    for sample in look.snapshot.gpus:
        uuid = sample.gpu.uuid
        verdict = look.health(sample)
        if uuid in wrong:
            continue
        if verdict is not None and verdict.status != "ok":
            wrong[uuid] = f"{verdict.status}: {verdict.reason}"
        elif uuid not in leases and occupants(sample) is not None:
            wrong[uuid] = TAKEN
    total, left = len(inventory.devices), sum(device.unusable is None for device in inventory.devices)
    if not wrong:
        return Check("gpus", "ok", f"{total} {noun}, all of them fit for jobs")
    told = "; ".join(f"{name}: {why}" for name, why in sorted(wrong.items()))
    fix = "see GET /multigpu/gpu/recommendations for what to do about each"
    return Check("gpus", "failing" if left == 0 else "degraded", f"{left} of {total} {noun} can be used. {told}", fix)
