"""How many jobs are in which state, kept with every change: counting a long history takes longer than reading it."""

from __future__ import annotations

from sqlalchemy import Connection, func, insert, select, update

from drumline.jobs.records import Job, State
from drumline.jobs.store.tables import job_counts


def count_change(connection: Connection, job: Job, was: State | None) -> None:
    """Count a job that is new (was None) or has changed its state. Only under the scheduling lock.

    Without it two services that change two rows of it in another order would wait for each other in PostgreSQL.
    """
    if was == job.state:
        return
    for state, change in ((was, -1), (job.state, 1)):
        if state is not None:
            row = (job_counts.c.owner == job.owner) & (job_counts.c.state == state)
            found = connection.execute(update(job_counts).where(row).values(number=job_counts.c.number + change))
            if not found.rowcount:
                connection.execute(insert(job_counts).values(owner=job.owner, state=state, number=change))


def read_counts(connection: Connection, owner: str | None) -> dict[State, int]:
    """State -> number of jobs in it, of one owner or all; states without any are left out."""
    query = select(job_counts.c.state, func.sum(job_counts.c.number)).group_by(job_counts.c.state)
    if owner is not None:
        query = query.where(job_counts.c.owner == owner)
    return {row.state: int(row[1]) for row in connection.execute(query) if row[1]}
