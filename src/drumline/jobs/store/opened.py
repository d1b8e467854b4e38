"""The store, opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from drumline.jobs.records import ACTIVE_STATES, Job
from drumline.jobs.store.change import Change
from drumline.jobs.store.connection import Database
from drumline.jobs.store.jobs import Jobs
from drumline.jobs.store.keys import Keys
from drumline.jobs.store.leases import Leases, Services
from drumline.jobs.store.log import Log
from drumline.jobs.store.migration import bring_up_to_date
from drumline.jobs.store.rows import KnownJobs, read_known
from drumline.jobs.store.settings import Settings
from drumline.jobs.store.spent import KnownUsage


class Store:
    """Everything that a service keeps in a database. For all threads of a process, and any number of processes.

    Every method raises StoreError where the database fails; what it was to change is then as it was.
    """

    def __init__(self, url: str) -> None:
        """See open_store()."""
        self._database = Database(url)
        try:
            self._database.prepare()
            bring_up_to_date(self._database)
        except BaseException:
            self._database.close()
            raise
        self._known = KnownJobs()
        self._spent = KnownUsage()
        self.jobs = Jobs(self._database, self._known)
        self.leases = Leases(self._database)
        self.keys = Keys(self._database)
        self.settings = Settings(self._database)
        self.log = Log(self._database)
        self.services = Services(self._database)

    @contextmanager
    def change(self) -> Iterator[Change]:
        """One transaction under the scheduling lock, which no other process of any node has meanwhile.

        All of it is kept at the end of the block, or nothing where it raises. Use no other part of the store in it.
        """
        with self._database.write(lock=True) as connection:
            change = Change(connection, self._known, self._spent)
            yield change
        change.committed()

    def unended(self, node: str, now: float, half_life_h: float) -> tuple[tuple[Job, ...], dict[str, float]]:
        """The jobs of a machine that wait or are active, and what owners have used, as a decision would read them.

        Nobody waits for it. See Change.usage().
        """
        with self._database.read() as connection:
            found = read_known(connection, self._known, ACTIVE_STATES | {"queued"}, node)
            self._known.keep_queued(found)
            return tuple(found.values()), self._spent.find(connection, node, now, half_life_h)

    def close(self) -> None:
        """Close the connections; closing twice is allowed."""
        self._database.close()
