"""What an attempt that is over took of its devices: noted for accounts, and summed in its job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from drumline.jobs.records import ACTIVE_STATES, Job
from drumline.jobs.results import DEVICE_SECONDS

if TYPE_CHECKING:
    from drumline.jobs.store import Change

SPENT_BEFORE = "energy_before_j"
"""In a job's progress: joules that the attempts before the present one took."""


def note_attempt(change: Change, before: Job, after: Job, progress: Mapping[str, Any], until: float) -> Job:
    """Note what the attempt that `before` was in took up to a moment; returns `after` with the sums of all attempts.

    progress: how far the run came, as its folder or the store tells last.
    """
    before_j = float(before.progress.get(SPENT_BEFORE, 0.0))
    spent_j = max(before_j, float(progress.get("energy_j", 0.0)))
    after = with_device_seconds(before, after)
    ran_s = after.used_s - before.used_s
    change.spend(before, until - ran_s, until, (spent_j - before_j) or None)
    return replace(after, progress={**after.progress, **progress, SPENT_BEFORE: spent_j})


def with_device_seconds(before: Job, after: Job) -> Job:
    """A job whose attempt is over, with the time that it had devices, over all of them and all attempts."""
    if after.state in ACTIVE_STATES:
        return after
    earlier = float(before.progress.get(DEVICE_SECONDS, 0.0))
    device_s = earlier + (after.used_s - before.used_s) * len(before.devices)
    return replace(after, progress={**after.progress, DEVICE_SECONDS: device_s})
