"""The order in which queued jobs are looked at: priority, waiting, and what their owners have had. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping

from drumline.jobs.records import ACTIVE_STATES, Job

COUNTED_AHEAD_S = 3600.0
"""Device-seconds that a job counts for each device it must have, before it has used any: else one owner's jobs would
all start before those of another one who has used a little more."""


def waited_s(job: Job, now: float) -> float:
    """Seconds that the job has waited, all its waits together: the time in which it ran is no waiting."""
    ran = job.used_s + (0.0 if job.attempt_began is None else now - job.attempt_began)
    return max(0.0, now - job.queued_since - ran)


def step_of(job: Job, now: float, ageing_s: float) -> float:
    """Its effective priority in whole steps; jobs of one step are ordered by their owners' shares.

    One that was stopped only for another size comes before all others: it never gave up its least number of devices.
    """
    if job.reason == "resized":
        return math.inf
    return job.resources.priority + waited_s(job, now) // ageing_s


def goes_before(job: Job, other: Job, now: float, ageing_s: float) -> bool:
    """Whether `job` would be looked at before `other`, which runs, if that waited too: a whole step before, to stay so.

    Without this, a job that was preempted after long waiting would get its devices back, and be preempted again.
    """
    ahead_s = (job.resources.priority - other.resources.priority) * ageing_s
    return job.reason == "resized" or ahead_s + waited_s(job, now) - waited_s(other, now) >= ageing_s


def shares(jobs: Iterable[Job], usage: Mapping[str, float]) -> dict[str, float]:
    """Owner -> device-seconds that count against it: what it used, and something for each job that it has running."""
    used = dict(usage)
    for job in jobs:
        if job.state in ACTIVE_STATES:
            used[job.owner] = used.get(job.owner, 0.0) + COUNTED_AHEAD_S * job.resources.least
    return used


def in_order(queued: Iterable[Job], used: Mapping[str, float], now: float, ageing_s: float) -> Iterator[Job]:
    """The queued jobs, that first which may first choose its devices; the same whatever the order they come in."""
    steps: dict[float, list[Job]] = {}
    for job in queued:
        steps.setdefault(step_of(job, now, ageing_s), []).append(job)
    used = dict(used)
    for step in sorted(steps, reverse=True):
        yield from _shared(steps[step], used)


def _shared(jobs: list[Job], used: dict[str, float]) -> Iterator[Job]:
    """Each time the oldest job of the owner that has had least, counting what goes before."""
    jobs.sort(key=lambda job: (job.queued_since, job.id), reverse=True)
    of_owner: dict[str, list[Job]] = {}
    for job in jobs:
        of_owner.setdefault(job.owner, []).append(job)
    heap = [(used.get(owner, 0.0), mine[-1].queued_since, mine[-1].id, owner) for owner, mine in of_owner.items()]
    heapq.heapify(heap)
    while heap:
        had, _, _, owner = heap[0]
        mine = of_owner[owner]
        job = mine.pop()
        yield job
        used[owner] = had = had + COUNTED_AHEAD_S * job.resources.least
        if mine:
            heapq.heapreplace(heap, (had, mine[-1].queued_since, mine[-1].id, owner))
        else:
            heapq.heappop(heap)
