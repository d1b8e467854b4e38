"""The order in which the scheduler would look at the jobs of one machine that wait: each job's place, from 1."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drumline.config.service import SchedulingConfig
from drumline.jobs.priorities import in_order, shares
from drumline.jobs.records import Job

if TYPE_CHECKING:
    from drumline.jobs.store import Store

KEPT_S = 1.0
"""How long an order is used: the scheduler decides as often."""
SEEN_S = 0.1
"""How long nobody asks the store again whether another process added a job or removed one."""
LONG = 2000
"""Jobs in a queue whose order is not made anew before KEPT_S for a job that came or went."""


@dataclass(frozen=True)
class _Order:
    made: float
    num_queued: int
    """In the whole store, when it was made."""
    jobs: tuple[Job, ...]
    places: dict[str, int]


class Queue:
    """One machine's queue. For all threads; the order is made once for all who ask in the same second."""

    def __init__(
        self, store: Store, node: str, policy: SchedulingConfig, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._node = node
        self._policy = policy
        self._steady = steady
        self._order: _Order | None = None
        self._counted = -SEEN_S
        self._turn = threading.Lock()

    def jobs(self) -> tuple[Job, ...]:
        """Those that wait, that first which is looked at first. Raises StoreError."""
        return self._look(()).jobs

    def places(self, jobs: Iterable[Job]) -> dict[str, int]:
        """Where these jobs are in the queue, from 1, by their ids. Raises StoreError.

        Those are left out that do not wait, or for another machine, and that came into a long queue a moment ago.
        """
        waiting = [job.id for job in jobs if job.state == "queued" and job.node == self._node]
        places = self._look(waiting).places if waiting else {}
        return {job_id: places[job_id] for job_id in waiting if job_id in places}

    def look_again(self) -> None:
        """A job came or went, as this process knows."""
        self._counted = self._steady() - SEEN_S

    def _look(self, waiting: Sequence[str]) -> _Order:
        """The order as it is, or was a moment ago. waiting: jobs that should be in it."""
        order, now = self._order, self._steady()
        if order is not None and now < self._counted + SEEN_S and not self._is_old(order, order.num_queued, waiting):
            return order
        num_queued = self._store.jobs.counts().get("queued", 0)
        self._counted = now
        with self._turn:
            order = self._order
            if order is None or self._is_old(order, num_queued, waiting):
                order = self._order = self._made(num_queued)
            return order

    def _is_old(self, order: _Order, num_queued: int, waiting: Sequence[str]) -> bool:
        if self._steady() - order.made >= KEPT_S:
            return True
        is_other = order.num_queued != num_queued or any(job_id not in order.places for job_id in waiting)
        return is_other and len(order.jobs) <= LONG

    def _made(self, num_queued: int) -> _Order:
        made, now, policy = self._steady(), time.time(), self._policy
        jobs, usage = self._store.unended(self._node, now, policy.fair_share_hours)
        queued = [job for job in jobs if job.state == "queued"]
        ordered = tuple(in_order(queued, shares(jobs, usage), now, policy.ageing_s))
        return _Order(made, num_queued, ordered, {job.id: place for place, job in enumerate(ordered, 1)})
