"""Jobs as rows, and rows as jobs."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from drumline.jobs.records import ACTIVE_STATES, END_STATES, Job, Lease, Resources, State, Work
from drumline.jobs.store.counting import count_change
from drumline.jobs.store.tables import job_documents, job_tags, jobs

JOB_FIELDS = tuple(field.name for field in fields(Job))
RECORD_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in (Work, Resources)}
DOCUMENTS = ("work", "resources", "progress", "result")
FIXED = frozenset({"id", "owner", "created", "tags", "kind", "search"})
"""Columns that are written once."""

SEARCH_LENGTH = 2000
NUM_ENDED = 1000

WHOLE = select(*jobs.c, *(job_documents.c[name] for name in DOCUMENTS)).join(job_documents)
BY_ID = WHOLE.where(jobs.c.id == bindparam("job_id"))
BY_IDS = WHOLE.where(jobs.c.id.in_(bindparam("job_ids", expanding=True)))
NUM_IDS = 500
"""In one query: databases take only so many values."""


class KnownJobs:
    """Jobs as they were read last, so that long lists of those that wait or have ended are not read again and again.

    While a job waits, and once it has ended, nothing of it changes without its version, but for why it waits.
    """

    def __init__(self) -> None:
        self._queued: dict[str, Job] = {}
        self._ended: dict[str, Job] = {}
        self._lock = threading.Lock()

    def find(self, job_id: str, version: int, waits_for: str) -> Job | None:
        """A job of this version; None: it is not known."""
        job = self._queued.get(job_id) or self._ended.get(job_id)
        if job is None or job.version != version:
            return None
        return job if job.waits_for == waits_for else replace(job, waits_for=waits_for)

    def keep_queued(self, found: Mapping[str, Job]) -> None:
        """Keep the whole queue, in place of what it was before."""
        self._queued = {job.id: job for job in found.values() if job.state == "queued"}

    def keep_ended(self, job: Job) -> None:
        """Keep a job if it has ended, in place of the one that was kept first if there are many."""
        if job.has_ended:
            with self._lock:
                self._ended[job.id] = job
                if len(self._ended) > NUM_ENDED:
                    del self._ended[next(iter(self._ended))]


def insert_job(connection: Connection, job: Job) -> None:
    """Write a new job. Raises IntegrityError where its id is taken."""
    row, documents = _rows_of(job)
    connection.execute(insert(jobs), row)
    connection.execute(insert(job_documents), {"job_id": job.id, **documents})
    count_change(connection, job, None)
    if job.tags:
        tags = [{"job_id": job.id, "tag": tag, "created": job.created} for tag in dict.fromkeys(job.tags)]
        connection.execute(insert(job_tags), tags)


def read_job(connection: Connection, job_id: str) -> Job | None:
    """A job by its id; None: there is none."""
    row = connection.execute(BY_ID, {"job_id": job_id}).one_or_none()
    return None if row is None else job_from_row(row)


def read_jobs(connection: Connection, job_ids: list[str]) -> dict[str, Job]:
    """Jobs by their ids; those that are not there are left out."""
    found = {}
    for start in range(0, len(job_ids), NUM_IDS):
        for row in connection.execute(BY_IDS, {"job_ids": job_ids[start : start + NUM_IDS]}):
            found[row.id] = job_from_row(row)
    return found


def read_known(connection: Connection, known: KnownJobs, states: Collection[State], node: str | None) -> dict[str, Job]:
    """The jobs in any of these states, by their ids; only those are read whole that are not known."""
    query = select(jobs.c.id, jobs.c.version, jobs.c.waits_for).where(jobs.c.state.in_(sorted(states)))
    if node is not None:
        query = query.where(jobs.c.node == node)
    heads = connection.execute(query).all()
    found = {}
    for job_id, version, waits_for in heads:
        job = known.find(job_id, version, waits_for)
        if job is not None:
            found[job_id] = job
    found.update(read_jobs(connection, [head.id for head in heads if head.id not in found]))
    return found


def read_active(
    connection: Connection, node: str, *, elsewhere: bool = False, reason: str | None = None
) -> tuple[Job, ...]:
    """The jobs of a machine, or of all others, that are starting, running or stopping, in the order of their ids.

    reason: only those with this one.
    """
    there = jobs.c.node != node if elsewhere else jobs.c.node == node
    goes_on = there & jobs.c.state.in_(sorted(ACTIVE_STATES))
    if reason is not None:
        goes_on &= jobs.c.reason == reason
    return tuple(job_from_row(row) for row in connection.execute(WHOLE.where(goes_on).order_by(jobs.c.id)))


def write_job(connection: Connection, job: Job, before: Job | None) -> Job | None:
    """Write a job over the version that it was made of; None where that is not there any more, or has ended otherwise.

    before: as it was read. Its progress is then only written where it differs, for it has no version. Whose a job is,
    its tags and when it was made stay as they were.
    """
    over = (jobs.c.id == job.id) & (jobs.c.version == job.version)
    was: State | None = connection.scalar(select(jobs.c.state).where(over))
    # An end state is final, whoever thinks otherwise.
    if was is None or (was in END_STATES and was != job.state):
        return None
    row, documents = _rows_of(job)
    row = {name: value for name, value in row.items() if name not in FIXED} | {"version": job.version + 1}
    if connection.execute(update(jobs).where(over).values(row)).rowcount != 1:
        return None
    count_change(connection, job, was)
    if before is not None:
        documents = {name: value for name, value in documents.items() if getattr(before, name) != getattr(job, name)}
    if documents:
        connection.execute(update(job_documents).where(job_documents.c.job_id == job.id).values(documents))
    return replace(job, version=job.version + 1)


def write_progress(connection: Connection, job_id: str, attempt: int, progress: Mapping[str, Any]) -> bool:
    """Write how far an attempt is, if it is the present one and goes on; whether it is so."""
    goes_on = (jobs.c.id == job_id) & (jobs.c.attempt == attempt) & jobs.c.state.in_(sorted(ACTIVE_STATES))
    # The row stays so until this is kept: its end, with the sums over all attempts, comes before or after.
    if connection.scalar(select(jobs.c.id).where(goes_on).with_for_update()) is None:
        return False
    connection.execute(update(job_documents).where(job_documents.c.job_id == job_id).values(progress=progress))
    return True


def job_from_row(row: Row[Any]) -> Job:
    """The job that a row of WHOLE is of."""
    columns = row._mapping
    values = {name: columns[name] for name in JOB_FIELDS}
    work = values["work"]
    values["work"] = Work(**{**work, "data": tuple(work["data"])})
    asked = values["resources"]
    values["resources"] = Resources(**{**asked, "gpus": tuple(asked.get("gpus", ()))})
    values["tags"] = tuple(values["tags"])
    values["devices"] = tuple(values["devices"])
    return Job(**values)


def lease_from_row(row: Row[Any]) -> Lease:
    """The lease that a row is of."""
    return Lease(**row._mapping)


def _rows_of(job: Job) -> tuple[dict[str, Any], dict[str, Any]]:
    """A job's row, and its documents."""
    row = {name: getattr(job, name) for name in JOB_FIELDS if name not in DOCUMENTS}
    documents: dict[str, Any] = {"progress": job.progress, "result": job.result}
    documents["work"] = {name: getattr(job.work, name) for name in RECORD_FIELDS[Work]}
    documents["resources"] = {name: getattr(job.resources, name) for name in RECORD_FIELDS[Resources]}
    return {**row, "kind": job.work.kind, "search": _search_text(job)}, documents


def _search_text(job: Job) -> str:
    """What a search for text looks into, in small letters."""
    words = (job.id, job.name, job.work.model_name, job.user_id, *job.tags)
    return "\n".join(word for word in words if word).lower()[:SEARCH_LENGTH]
