"""Who did what."""

from __future__ import annotations

from sqlalchemy import ColumnElement, delete, func, insert, or_, select

from drumline.errors import ConfigError
from drumline.jobs.store.connection import Database
from drumline.jobs.store.tables import audits
from drumline.jobs.store.values import Audit, AuditFilter, Page

LARGEST_ID = 2**31 - 1


class Log:
    """The part of a store that has the audit events; they are added, read and in the end forgotten, never changed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def audit(self, event: str, who: str, what: str, at: float) -> None:
        """Note that somebody did something, as event "key.revoke" to what "key-1f…"."""
        with self._database.write() as connection:
            connection.execute(insert(audits).values(event=event, who=who, what=what, at=at))

    def audits(self, cursor: str | None = None, limit: int = 50, wanted: AuditFilter | None = None) -> Page[Audit]:
        """What was noted and fits, newest first. Raises ConfigError for a cursor that no page gave."""
        conditions = [] if wanted is None else _conditions(wanted)
        query = select(audits).where(*conditions).order_by(audits.c.id.desc()).limit(limit + 1)
        if cursor is not None:
            query = query.where(audits.c.id < _place(cursor))
        with self._database.read() as connection:
            found = [Audit(**row._mapping) for row in connection.execute(query)]
            total = connection.scalar(select(func.count()).select_from(audits).where(*conditions)) or 0
        items = tuple(found[:limit])
        return Page(items, str(items[-1].id) if len(found) > limit else None, total)

    def forget(self, before: float) -> int:
        """Remove what was noted before a moment; returns how many."""
        with self._database.write() as connection:
            return connection.execute(delete(audits).where(audits.c.at < before)).rowcount


def _conditions(wanted: AuditFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if (who := wanted.who) is not None:
        # Not LIKE, for which SQLite takes ann and Ann as one.
        owner, key = f"{who} (", f" ({who})"
        of_owner = func.substr(audits.c.who, 1, len(owner)) == owner
        of_key = func.substr(audits.c.who, func.length(audits.c.who) - len(key) + 1) == key
        conditions.append(or_(audits.c.who == who, of_owner, of_key))
    if wanted.events:
        conditions.append(audits.c.event.in_(sorted(wanted.events)))
    if wanted.after is not None:
        conditions.append(audits.c.at >= wanted.after)
    if wanted.before is not None:
        conditions.append(audits.c.at < wanted.before)
    return conditions


def _place(cursor: str) -> int:
    if cursor.isascii() and cursor.isdigit() and len(cursor) <= 10 and int(cursor) <= LARGEST_ID:
        return int(cursor)
    raise ConfigError("the cursor is none that a page of this list gave", "start at the first page, without a cursor")
