"""One transaction under the scheduling lock."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection, bindparam, delete, exc, insert, select, update

from drumline.errors import Conflict
from drumline.jobs.records import Job, Lease, State
from drumline.jobs.store.jobs import changed_meanwhile
from drumline.jobs.store.rows import KnownJobs, lease_from_row, read_known, write_job
from drumline.jobs.store.spent import KnownUsage, write_usage
from drumline.jobs.store.tables import jobs, leases


class Change:
    """What Store.change() gives: the jobs and leases as no other process sees or changes them meanwhile."""

    def __init__(self, connection: Connection, known: KnownJobs, spent: KnownUsage) -> None:
        self._connection = connection
        self._known = known
        self._spent = spent
        self._read: dict[str, Job] = {}
        self._queue: dict[str, Job] | None = None

    def jobs(self, states: Collection[State], node: str | None = None) -> tuple[Job, ...]:
        """The jobs in any of these states, in the order of their ids; node: of one machine only."""
        found = read_known(self._connection, self._known, states, node)
        if "queued" in states:
            self._queue = found
        self._read.update(found)
        return tuple(found[job_id] for job_id in sorted(found))

    def committed(self) -> None:
        """Remember the queue as it was read; not before, for what is rolled back was never so."""
        if self._queue is not None:
            self._known.keep_queued(self._queue)

    def leases(self, node: str | None = None) -> tuple[Lease, ...]:
        """All leases; node: of one machine only."""
        query = select(leases).order_by(leases.c.node, leases.c.device)
        if node is not None:
            query = query.where(leases.c.node == node)
        return tuple(lease_from_row(row) for row in self._connection.execute(query))

    def usage(self, node: str, now: float, half_life_h: float) -> dict[str, float]:
        """Owner -> seconds times devices that its jobs have used on a node, what is long ago counting less.

        Attempts that go on count up to now. One that another process saw end counts for what it took before midnight
        only within a minute.
        """
        return self._spent.find(self._connection, node, now, half_life_h)

    def save(self, job: Job) -> Job:
        """Write a job over the version that it was made of; returns it with its new one.

        Raises Conflict where it was changed since it was read, is not there, or has ended in another state. How far it
        is (progress) is written only where it differs from what this change has read.
        """
        written = write_job(self._connection, job, self._read.get(job.id))
        if written is None:
            raise changed_meanwhile(job.id)
        self._read[job.id] = written
        return written

    def tell_waits(self, reasons: Mapping[str, str]) -> None:
        """Keep why jobs wait, where that is news. It is no change of a job: its version stays."""
        news = [
            {"job": job_id, "why": why}
            for job_id, why in reasons.items()
            if job_id not in self._read or self._read[job_id].waits_for != why
        ]
        if news:
            query = update(jobs).where(jobs.c.id == bindparam("job"), jobs.c.state == "queued")
            self._connection.execute(query.values(waits_for=bindparam("why")), news)

    def grant(self, job: Job, devices: Sequence[str], now: float, lease_s: float) -> tuple[Lease, ...]:
        """Lease devices of the job's node to it. Raises Conflict where one is leased already; then none is."""
        granted = tuple(Lease(device, job.node, job.id, now, now + lease_s) for device in devices)
        rows = [
            {"node": lease.node, "device": lease.device, "job_id": job.id, "since": now, "expires": lease.expires}
            for lease in granted
        ]
        try:
            # A refusal must leave the rest of the change as it is.
            with self._connection.begin_nested():
                if rows:
                    self._connection.execute(insert(leases), rows)
        except exc.IntegrityError as error:
            raise Conflict(
                f"of {', '.join(devices)} one is leased to another job than {job.id}",
                "decide again on the leases as they are",
            ) from error
        return granted

    def release(self, job_id: str) -> int:
        """Give back all devices of a job; returns how many it had."""
        return self._connection.execute(delete(leases).where(leases.c.job_id == job_id)).rowcount

    def spend(self, job: Job, began: float, ended: float, energy_j: float | None = None) -> None:
        """Note what an attempt of a job took of its devices (job.attempt, job.devices), day by day.

        Noting it again for the same attempt replaces it.
        """
        if write_usage(self._connection, job, (began, ended), energy_j) > 1:
            self._spent.forget(job.node)  # some of it is as of long ago
