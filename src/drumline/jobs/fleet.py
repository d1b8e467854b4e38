"""Who holds which devices at one moment, as a decision goes through them."""

from __future__ import annotations

from collections.abc import Sequence

from drumline.jobs.placement import Pool
from drumline.jobs.records import ACTIVE_STATES, Device, Inventory, Job, Lease

MOST_LEAST_RUNS = 10
"""Bounds how long a job that was stopped often is left alone, in policy.least_run_s."""


class Fleet:
    """The usable devices of a machine in three parts: free, coming free by jobs that are stopping, and held.

    A device with a lease is never free, whoever has it and however old it is.
    """

    def __init__(
        self, jobs: Sequence[Job], leases: Sequence[Lease], inventory: Inventory, *, now: float, least_run_s: float
    ) -> None:
        self.inventory = inventory
        self.owners = {job.id: job.owner for job in jobs}
        holders = {lease.device: lease.job_id for lease in leases}
        for job in jobs:
            if job.state in ACTIVE_STATES:
                holders.update(dict.fromkeys(job.devices, job.id))
        usable = [device for device in inventory.devices if device.unusable is None]
        self.machine = Pool(inventory.devices)
        self.usable = Pool(usable)
        self.free = Pool(device for device in usable if device.id not in holders)
        self.held: dict[str, list[Device]] = {}
        for device in usable:
            if device.id in holders:
                self.held.setdefault(holders[device.id], []).append(device)
        self.coming = Pool()
        self.leaving: dict[str, None] = {}
        for job in sorted((job for job in jobs if job.state == "stopping"), key=lambda job: job.id):
            self.leave(job, comes_back=job.stop == "resize")
        self.settled = _settled(jobs, now, least_run_s)
        """Running jobs that may be stopped for others, those first that are to be stopped first."""
        self.elastic = [job for job in self.settled if job.resources.is_elastic]

    def leave(self, job: Job, comes_back: bool) -> None:
        """Count a job's devices as coming, but for those that it will have again at least."""
        devices = self.held.pop(job.id, [])
        kept = job.resources.least if comes_back else 0
        self.leaving[job.id] = None
        self.coming.put(devices[kept:])
        if devices[:kept]:
            self.held[job.id] = devices[:kept]

    def take(self, job: Job, count: int) -> list[Device]:
        """Free devices that the job has from now on."""
        taken = self.free.take(count, job.resources)
        self.held[job.id] = taken
        return taken

    def claim(self, job: Job) -> None:
        """Keep devices for a job that starts once the stopping ones have stopped: free ones, then coming ones."""
        asked, least = job.resources, job.resources.least
        free = min(least, self.free.count(asked))
        self.held[job.id] = [*self.free.take(free, asked), *self.coming.take(least - free, asked)]


def _settled(jobs: Sequence[Job], now: float, least_run_s: float) -> list[Job]:
    """Those that have run for long enough: the lowest priority first, and of equal ones that which began last.

    The more often a job has begun already, the longer it is left alone, so that it does not only begin.
    """
    began = {job.id: job.attempt_began or 0.0 for job in jobs if job.state == "running"}
    settled = [
        job
        for job in jobs
        if job.id in began and now - began[job.id] >= least_run_s * min(max(job.attempt, 1), MOST_LEAST_RUNS)
    ]
    return sorted(settled, key=lambda job: (job.resources.priority, -began[job.id], job.id))
