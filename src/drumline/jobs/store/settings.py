"""Documents that are kept with all their earlier versions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, exc, func, insert, select

from drumline.errors import Conflict
from drumline.jobs.store.connection import Database
from drumline.jobs.store.tables import documents
from drumline.jobs.store.values import DocumentKind, Versioned

TRIES = 50
"""Of putting a document where others put theirs at the same moment."""


class Settings:
    """The part of a store that has the defaults of later jobs, and plans."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(
        self,
        kind: DocumentKind,
        values: Mapping[str, Any],
        by: str,
        expected: int | None = None,
        *,
        document_id: str | None = None,
    ) -> Versioned:
        """Keep the next version of a document.

        expected: the version that it follows, 0 for none; raises Conflict where another one is the latest.
        document_id: None for a new one; raises Conflict where there is one already.
        """
        new_id = f"{kind}-{secrets.token_hex(8)}" if document_id is None else document_id
        for _ in range(TRIES):
            try:
                with self._database.write() as connection:
                    if connection.scalar(select(documents.c.id).where(documents.c.id == new_id)):
                        raise Conflict(f"there is {new_id} already", "give the new one another id")
                    newest = select(func.coalesce(func.max(documents.c.version), 0)).where(documents.c.kind == kind)
                    latest = connection.scalar(newest) or 0
                    if expected is not None and expected != latest:
                        break
                    version = Versioned(new_id, kind, latest + 1, values, time.time(), by)
                    row = {"id": new_id, "kind": kind, "version": latest + 1, "at": version.at, "by": by}
                    connection.execute(insert(documents).values(**row, content=values))
                    return version
            except exc.IntegrityError:
                continue  # another service has put that version meanwhile
        raise Conflict(f"the {kind} were changed meanwhile", "read them again, and change those")

    def latest(self, kind: DocumentKind) -> Versioned | None:
        """The newest document of a kind; None: there is none yet."""
        newest = select(func.max(documents.c.version)).where(documents.c.kind == kind).scalar_subquery()
        return self._one(documents.c.version == newest, kind)

    def get(self, kind: DocumentKind, document_id: str) -> Versioned | None:
        """A document by its id."""
        return self._one(documents.c.id == document_id, kind)

    def at_version(self, kind: DocumentKind, version: int) -> Versioned | None:
        """A document as it was once; None: there is no such version."""
        return self._one(documents.c.version == version, kind)

    def forget(self, kind: DocumentKind, before: float) -> int:
        """Remove the documents of a kind that were put before a moment; returns how many."""
        old = delete(documents).where(documents.c.kind == kind, documents.c.at < before)
        with self._database.write() as connection:
            return connection.execute(old).rowcount

    def remove(self, document: Versioned) -> None:
        """Remove a document, unless it is gone; one that was put under its id since then stays."""
        with self._database.write() as connection:
            remove_same(connection, document)

    def _one(self, condition: ColumnElement[bool], kind: DocumentKind) -> Versioned | None:
        with self._database.read() as connection:
            row = connection.execute(select(documents).where(documents.c.kind == kind, condition)).one_or_none()
        return None if row is None else _document(row)


def remove_same(connection: Connection, document: Versioned) -> bool:
    """Remove a document, but none that was put under its id since then; returns whether it was there."""
    # Versions come again once the newest is removed, moments do not.
    same = documents.c.id == document.id, documents.c.version == document.version, documents.c.at == document.at
    return connection.execute(delete(documents).where(*same)).rowcount > 0


def _document(row: Row[Any]) -> Versioned:
    values = dict(row._mapping)
    return Versioned(values=values.pop("content"), **values)
