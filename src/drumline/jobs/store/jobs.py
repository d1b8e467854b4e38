"""Jobs outside of scheduling: add, read, list, change one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import delete, exc, insert, select

from drumline.errors import Conflict, IdempotencyConflict, NotFound
from drumline.jobs.records import Job, State
from drumline.jobs.store.connection import Database
from drumline.jobs.store.counting import read_counts
from drumline.jobs.store.listing import find_page
from drumline.jobs.store.rows import KnownJobs, insert_job, read_active, read_job, read_jobs, write_job, write_progress
from drumline.jobs.store.settings import remove_same
from drumline.jobs.store.spent import read_running, read_usage
from drumline.jobs.store.tables import idempotency as idempotency_keys
from drumline.jobs.store.tables import jobs
from drumline.jobs.store.values import Idempotency, JobFilter, Page, Use, Versioned


class Jobs:
    """The part of a store that has the jobs."""

    def __init__(self, database: Database, known: KnownJobs) -> None:
        self._database = database
        self._known = known

    def add(self, job: Job, idempotency: Idempotency | None = None, plan: Versioned | None = None) -> tuple[Job, bool]:
        """Keep a new job: the job and True, or the one that the same request made before and False.

        However many threads and processes add the same request at once, there is one job. plan: what it was made of,
        whose row goes with it. Raises IdempotencyConflict where the key was used for another request, Conflict where
        the job's id is taken, and NotFound where the plan is not there any more.
        """
        try:
            with self._database.write(lock=True) as connection:
                insert_job(connection, job)
                if idempotency is not None:
                    values = {"owner": idempotency.owner, "key": idempotency.key, "job_id": job.id}
                    connection.execute(insert(idempotency_keys), {**values, "fingerprint": idempotency.fingerprint})
                if plan is not None and not remove_same(connection, plan):
                    raise NotFound(f"{plan.id} is not there any more: it was started already", "plan it again")
        except exc.IntegrityError as error:
            earlier = None if idempotency is None else self.added_before(idempotency)
            if earlier is None:
                raise Conflict(f"there is a job {job.id} already", "give the new job another id") from error
            return earlier, False
        return job, True

    def added_before(self, idempotency: Idempotency) -> Job | None:
        """The job that a request has made already; None: none. Raises IdempotencyConflict as add() does."""
        query = select(idempotency_keys.c.fingerprint, idempotency_keys.c.job_id).where(
            idempotency_keys.c.owner == idempotency.owner, idempotency_keys.c.key == idempotency.key
        )
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
            if row is None:
                return None
            if row.fingerprint != idempotency.fingerprint:
                raise IdempotencyConflict(
                    f"the idempotency key {idempotency.key!r} was used for another request, which made {row.job_id}",
                    "give every new request a key of its own",
                )
            return read_job(connection, row.job_id)

    def forget_idempotency(self, before: float) -> int:
        """Forget the keys of jobs that were made before a moment; returns how many."""
        old = select(jobs.c.id).where(jobs.c.created < before)
        with self._database.write() as connection:
            return connection.execute(delete(idempotency_keys).where(idempotency_keys.c.job_id.in_(old))).rowcount

    def get(self, job_id: str) -> Job | None:
        """A job by its id; None: there is none."""
        with self._database.read() as connection:
            return read_job(connection, job_id)

    def several(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """Jobs by their ids; those that are not there are left out."""
        with self._database.read() as connection:
            return read_jobs(connection, list(job_ids))

    def find(self, wanted: JobFilter, cursor: str | None = None, limit: int = 50) -> Page[Job]:
        """The jobs that a filter lets through, newest first. Raises ConfigError for a cursor that no page gave."""
        with self._database.read() as connection:
            return find_page(connection, self._known, wanted, cursor, limit)

    def update(self, job_id: str, change: Callable[[Job], Job | None]) -> Job | None:
        """Change one job, whoever else changes it at the same time: the job as it now is; None: there is none.

        change: gets the job as it is and gives it as it shall be, or None to leave it; the store is locked meanwhile.
        Raises Conflict where a job that has ended would change its state.
        """
        with self._database.write(lock=True) as connection:
            job = read_job(connection, job_id)
            if job is None:
                return None
            wanted = change(job)
            if wanted is None or wanted == job:
                return job
            written = write_job(connection, wanted, before=job)
        if written is None:
            raise changed_meanwhile(job_id)
        return written

    def active(self, node: str) -> tuple[Job, ...]:
        """The jobs of a machine that are starting, running or stopping, in the order of their ids; nobody waits."""
        with self._database.read() as connection:
            return read_active(connection, node)

    def active_elsewhere(self, node: str, reason: str | None = None) -> tuple[Job, ...]:
        """Those of all other machines; reason: only those with this one."""
        with self._database.read() as connection:
            return read_active(connection, node, elsewhere=True, reason=reason)

    def tell_progress(self, job_id: str, attempt: int, progress: Mapping[str, Any]) -> bool:
        """Keep how far an attempt of a job is; False: that is over. It is no change of a job: its version stays."""
        with self._database.write() as connection:
            return write_progress(connection, job_id, attempt, progress)

    def counts(self, owner: str | None = None) -> dict[State, int]:
        """How many jobs are in each state that any is in."""
        with self._database.read() as connection:
            return read_counts(connection, owner)

    def running(self, owner: str | None = None) -> tuple[Job, ...]:
        """The jobs of all machines of which an attempt goes on; what that takes is in no usage() yet."""
        with self._database.read() as connection:
            return read_running(connection, owner)

    def usage(self, since: float, until: float, owner: str | None = None) -> tuple[Use, ...]:
        """What ended attempts took of devices from one moment's day to another's (UTC), by job and day.

        The newest jobs come first.
        """
        with self._database.read() as connection:
            return read_usage(connection, (since, until), owner)


def changed_meanwhile(job_id: str) -> Conflict:
    """What is said where a job has another version than the one that was to be changed."""
    return Conflict(f"{job_id} was changed meanwhile, or has ended", "read it again, and change that")
