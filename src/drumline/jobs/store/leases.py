"""Leases outside of scheduling, and the services that look after them."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, func, insert, select, update

from drumline.jobs.records import Lease
from drumline.jobs.store.connection import Database
from drumline.jobs.store.rows import lease_from_row
from drumline.jobs.store.tables import leases, services
from drumline.jobs.store.values import Beat

FORGET_S = 86_400.0
"""After which the last sign of life of a service that is no more is dropped."""


class Leases:
    """The part of a store that has the leases; they are made and ended by a Change."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self, node: str | None = None) -> tuple[Lease, ...]:
        """All leases; node: of one machine only."""
        query = select(leases).order_by(leases.c.node, leases.c.device)
        if node is not None:
            query = query.where(leases.c.node == node)
        with self._database.read() as connection:
            return tuple(lease_from_row(row) for row in connection.execute(query))

    def renew(self, node: str, job_ids: Collection[str], until: float) -> int:
        """Let the leases of these jobs last until a moment, none shorter than it is; returns how many there are."""
        if not job_ids:
            return 0
        ours = update(leases).where(leases.c.node == node, leases.c.job_id.in_(sorted(job_ids)))
        with self._database.write() as connection:
            return connection.execute(ours.where(leases.c.expires < until).values(expires=until)).rowcount


class Services:
    """The part of a store by which services on one node know of each other."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def heartbeat(self, service_id: str, node: str, pid: int, at: float) -> None:
        """Say that a service lives."""
        with self._database.write() as connection:
            query = update(services).where(services.c.service_id == service_id)
            if not connection.execute(query.values(node=node, pid=pid, at=at)).rowcount:
                connection.execute(delete(services).where(services.c.at < at - FORGET_S))
                connection.execute(insert(services).values(service_id=service_id, node=node, pid=pid, at=at))

    def alive(self, node: str, since: float = 0.0) -> tuple[Beat, ...]:
        """The services of a node that gave a sign of life at `since` or later, the newest sign first."""
        query = select(services).where(services.c.node == node, services.c.at >= since)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(services.c.at.desc(), services.c.service_id)).all()
        return tuple(Beat(**row._mapping) for row in rows)

    def newest(self) -> dict[str, float]:
        """By node, the newest sign of life of any of its services."""
        query = select(services.c.node, func.max(services.c.at).label("newest")).group_by(services.c.node)
        with self._database.read() as connection:
            return {row.node: row.newest for row in connection.execute(query)}

    def forget(self, service_id: str) -> None:
        """Say that a service ends in order."""
        with self._database.write() as connection:
            connection.execute(delete(services).where(services.c.service_id == service_id))
