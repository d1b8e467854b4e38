"""How elastic jobs come to more devices than they must have: where nobody else waits for them. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from drumline.jobs.fleet import Fleet
from drumline.jobs.placement import Pool
from drumline.jobs.records import Device, Job


def extend(starting: dict[str, list[Device]], jobs: Sequence[Job], free: Pool) -> None:
    """Share what is left free among the elastic `jobs` that start now, evenly and up to their bounds.

    `starting`: job -> its devices, changed in place; the larger set is chosen anew, so that it is of one group where
    that is possible.
    """
    sizes = [(len(starting[job.id]), number) for number, job in enumerate(jobs)]
    heapq.heapify(sizes)
    while sizes and free.count():
        size, number = heapq.heappop(sizes)
        job = jobs[number]
        most = job.resources.most
        if (most is None or size < most) and free.count(job.resources):
            starting[job.id] += free.take(1, job.resources)
            heapq.heappush(sizes, (size + 1, number))
    for job in jobs:
        if len(starting[job.id]) > job.resources.least:
            free.put(starting[job.id])
            starting[job.id] = free.take(len(starting[job.id]), job.resources)


def growing(fleet: Fleet, least_run_s: float) -> Iterator[tuple[Job, int]]:
    """Running elastic jobs that go on with more devices, and with how many: the smallest first, as far as it may grow.

    None while any job is stopping: what comes free, and what the stopped one takes again, is not known yet.
    """
    if fleet.leaving:
        return
    for job in sorted(fleet.elastic, key=lambda job: (len(job.devices), job.id)):
        now_has, more = len(fleet.held.get(job.id, ())), fleet.free.count(job.resources)
        if job.resources.most is not None:
            more = min(more, job.resources.most - now_has)
        # Devices of its own that cannot be used now would not be had again.
        if now_has + more > len(job.devices) and _is_worth_it(job, now_has + more, least_run_s):
            fleet.free.take(more, job.resources)
            yield job, now_has + more


def _is_worth_it(job: Job, after: int, least_run_s: float) -> bool:
    """Whether what is left gets shorter by more than the time that a job runs at least between two stops."""
    left_s = job.progress.get("eta_s")
    if not isinstance(left_s, int | float):
        return True
    return left_s * (1 - len(job.devices) / after) > least_run_s
