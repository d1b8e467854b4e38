"""Lists of jobs, page by page, at the same speed whatever their number."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, func, literal, or_, select, union_all

from drumline.errors import ConfigError
from drumline.jobs.records import Job, State
from drumline.jobs.store.counting import read_counts
from drumline.jobs.store.rows import KnownJobs, read_jobs
from drumline.jobs.store.tables import job_tags, jobs
from drumline.jobs.store.values import JobFilter, Page

Place = tuple[float, str]
MARKS = ("owner", "kind", "not_kind", "has_begun", "tag", "user_id", "training_type")
FIELDS = (*MARKS, "created_after", "created_before", "text")
ESCAPE = "/"


def find_page(connection: Connection, known: KnownJobs, wanted: JobFilter, cursor: str | None, limit: int) -> Page[Job]:
    """One page of the jobs that a filter lets through."""
    given = {name: value for name in FIELDS if (value := getattr(wanted, name)) is not None}
    if wanted.text is not None:
        given["text"] = _pattern(wanted.text)
    names, states = tuple(given), tuple(sorted(wanted.states))
    values = {**given, "limit": limit + 1}
    if cursor is not None:
        values["place_created"], values["place_id"] = read_cursor(cursor)
    heads = connection.execute(_heads(names, states, cursor is not None), values).all()
    found: dict[str, Job] = {}
    for head in heads[:limit]:
        job = known.find(head.id, head.version, head.waits_for)
        if job is not None:
            found[head.id] = job
    fresh = read_jobs(connection, [head.id for head in heads[:limit] if head.id not in found])
    for job in fresh.values():
        known.keep_ended(job)
    found.update(fresh)
    more = len(heads) > limit
    return Page(
        items=tuple(found[head.id] for head in heads[:limit] if head.id in found),
        next_cursor=write_cursor((heads[limit - 1].created, heads[limit - 1].id)) if more else None,
        total=_total(connection, wanted, given) if more or cursor is not None else len(heads),
    )


def _total(connection: Connection, wanted: JobFilter, given: dict[str, Any]) -> int:
    if set(given) <= {"owner"}:
        counts = read_counts(connection, wanted.owner)
        return sum(number for state, number in counts.items() if not wanted.states or state in wanted.states)
    return connection.scalar(_count(tuple(given), tuple(sorted(wanted.states))), given) or 0


# Kept by their form: making such a statement takes longer than running it.
@lru_cache(maxsize=256)
def _heads(names: tuple[str, ...], states: tuple[State, ...], goes_on: bool) -> Select[Any]:
    """What a page is made of. Each state is read along its index by itself, and the first of each are merged."""
    tagged = "tag" in names
    created = job_tags.c.created if tagged else jobs.c.created
    key = job_tags.c.job_id if tagged else jobs.c.id
    columns = (jobs.c.id, created.label("created"), jobs.c.version, jobs.c.waits_for)
    parts = []
    each: Sequence[State | None] = states or (None,)
    for state in each:
        query = select(*columns).where(*_conditions(names))
        if tagged:
            query = query.select_from(job_tags.join(jobs, jobs.c.id == job_tags.c.job_id))
        if state is not None:
            query = query.where(jobs.c.state == state)
        if goes_on:
            place = bindparam("place_created", type_=created.type)
            after = or_(created < place, and_(created == place, key < bindparam("place_id", type_=key.type)))
            query = query.where(created <= place, after)
        parts.append(query.order_by(created.desc(), key.desc()).limit(bindparam("limit")))
    if len(parts) == 1:
        return parts[0]
    merged = union_all(*(select(part.subquery()) for part in parts)).subquery()
    return select(merged).order_by(merged.c.created.desc(), merged.c.id.desc()).limit(bindparam("limit"))


@lru_cache(maxsize=256)
def _count(names: tuple[str, ...], states: tuple[State, ...]) -> Select[Any]:
    """How many a filter lets through."""
    query = select(func.count()).where(*_conditions(names))
    if states:
        query = query.where(jobs.c.state.in_(states))
    if "tag" not in names:
        return query.select_from(jobs)
    only_tags = not states and set(names) <= {"tag", "created_after", "created_before"}
    return query.select_from(job_tags if only_tags else job_tags.join(jobs, jobs.c.id == job_tags.c.job_id))


def _conditions(names: tuple[str, ...]) -> list[ColumnElement[bool]]:
    """All of a filter but its states."""
    created = job_tags.c.created if "tag" in names else jobs.c.created
    conditions: dict[str, ColumnElement[bool]] = {
        name: jobs.c[name] == bindparam(name) for name in ("owner", "kind", "user_id", "training_type")
    }
    conditions["not_kind"] = jobs.c.kind != bindparam("not_kind")
    conditions["has_begun"] = or_(jobs.c.state != "queued", jobs.c.started.is_not(None))
    conditions["tag"] = job_tags.c.tag == bindparam("tag")
    conditions["created_after"] = created >= bindparam("created_after")
    conditions["created_before"] = created < bindparam("created_before")
    conditions["text"] = jobs.c.search.like(bindparam("text", type_=jobs.c.search.type), escape=ESCAPE)
    return [conditions[name] for name in names] or [literal(True)]


def _pattern(text: str) -> str:
    """What SQL's LIKE takes for text that stands anywhere."""
    escaped = text.lower().replace(ESCAPE, ESCAPE * 2)
    return "%" + escaped.replace("%", f"{ESCAPE}%").replace("_", f"{ESCAPE}_") + "%"


def write_cursor(place: Place) -> str:
    """A place in a list as text for a URL."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> Place:
    """The place that a cursor stands for. Raises ConfigError for one that no page gave."""
    try:
        created, job_id = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if isinstance(created, float) and math.isfinite(created) and isinstance(job_id, str):
            return created, job_id
    except (ValueError, TypeError, RecursionError, binascii.Error):
        pass
    raise ConfigError("the cursor is none that a page of this list gave", "start at the first page, without a cursor")
