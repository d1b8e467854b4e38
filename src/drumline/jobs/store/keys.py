"""API keys and logins."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, exc, func, insert, or_, select, update

from drumline.errors import Conflict
from drumline.jobs.store.connection import Database
from drumline.jobs.store.listing import read_cursor, write_cursor
from drumline.jobs.store.tables import keys
from drumline.jobs.store.values import Key, KeyFilter, KeyKind, Page

USED_S = 60.0
"""How exactly a key's last use is kept: not every request is a write."""


class Keys:
    """The part of a store that has keys and sessions, by the hashes of their secrets."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, key: Key) -> Key:
        """Keep a key. Raises Conflict where its id or its hash is there already, or its parent is not."""
        values = {field.name: getattr(key, field.name) for field in fields(Key)}
        try:
            with self._database.write() as connection:
                connection.execute(insert(keys).values(values))
        except exc.IntegrityError as error:
            raise Conflict(f"the key {key.id} cannot be kept beside those there are", "make another one") from error
        return key

    def find_by_hash(self, hashed: str) -> Key | None:
        """The key whose secret has this sha256 (hex), valid or not (see Key.is_valid); None: there is none."""
        return self._one(keys.c.hash == hashed)

    def get(self, key_id: str) -> Key | None:
        """A key by its id."""
        return self._one(keys.c.id == key_id)

    def list(self, owner: str | None = None, kind: KeyKind | None = "key") -> tuple[Key, ...]:
        """Keys, the newest first, those that are no longer valid too; kind None: sessions as well."""
        query = select(keys).order_by(keys.c.created.desc(), keys.c.id)
        if owner is not None:
            query = query.where(keys.c.owner == owner)
        if kind is not None:
            query = query.where(keys.c.kind == kind)
        with self._database.read() as connection:
            return tuple(Key(**row._mapping) for row in connection.execute(query))

    def find(self, wanted: KeyFilter, cursor: str | None = None, limit: int = 50) -> Page[Key]:
        """The keys, without sessions, that a filter lets through, newest first.

        Raises ConfigError for a cursor that no page gave.
        """
        conditions = [keys.c.kind == "key"]
        if wanted.owner is not None:
            conditions.append(keys.c.owner == wanted.owner)
        if wanted.role is not None:
            conditions.append(keys.c.role == wanted.role)
        if wanted.valid_at is not None:
            goes_on = or_(keys.c.expires.is_(None), keys.c.expires > wanted.valid_at)
            conditions.append(and_(keys.c.revoked.is_(None), goes_on))
        query = select(keys).where(*conditions).order_by(keys.c.created.desc(), keys.c.id.desc()).limit(limit + 1)
        if cursor is not None:
            created, key_id = read_cursor(cursor)
            query = query.where(or_(keys.c.created < created, and_(keys.c.created == created, keys.c.id < key_id)))
        with self._database.read() as connection:
            found = [Key(**row._mapping) for row in connection.execute(query)]
            total = connection.scalar(select(func.count()).select_from(keys).where(*conditions)) or 0
        items = tuple(found[:limit])
        more = len(found) > limit
        return Page(items, write_cursor((items[-1].created, items[-1].id)) if more else None, total)

    def revoke(self, key_id: str, at: float) -> bool:
        """Let a key, and the sessions opened with it, open nothing any more. False: there is no such key."""
        with self._database.write() as connection:
            known = connection.scalar(select(keys.c.id).where(keys.c.id == key_id))
            ours = update(keys).where(or_(keys.c.id == key_id, keys.c.parent == key_id), keys.c.revoked.is_(None))
            connection.execute(ours.values(revoked=at))
        return known is not None

    def touch(self, key: Key, at: float) -> None:
        """Note that a key was used, at most once a minute."""
        if key.last_used is not None and at < key.last_used + USED_S:
            return
        with self._database.write() as connection:
            connection.execute(update(keys).where(keys.c.id == key.id).values(last_used=at))

    def drop_sessions(self, expired_before: float) -> int:
        """Remove sessions that ran out before a moment; returns how many."""
        old = delete(keys).where(keys.c.kind == "session", keys.c.expires < expired_before)
        with self._database.write() as connection:
            return connection.execute(old).rowcount

    def _one(self, condition: ColumnElement[Any]) -> Key | None:
        with self._database.read() as connection:
            row = connection.execute(select(keys).where(condition)).one_or_none()
        return None if row is None else Key(**row._mapping)
