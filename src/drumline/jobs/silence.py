"""Other machines on the same store, of which nobody hears any more: their jobs say so, and a person may give them up.

A machine that is gone for good and one that is only cut off from the store look the same from here, and on the second
processes may train on. So nothing is ended by itself: an end state is final.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from drumline.config.service import SchedulingConfig
from drumline.jobs.events import GivenUp, Silent
from drumline.jobs.records import ACTIVE_STATES, Job, Lease
from drumline.jobs.results import no_result
from drumline.jobs.spending import note_attempt
from drumline.jobs.states import NODE_SILENT, handle
from drumline.jobs.store import Store

logger = logging.getLogger("drumline")

SILENT_S = 30.0
"""After which services of which there is no sign of life count as silent: each gives one every two seconds."""
LOOK_S = 5.0
"""Between two looks at the other machines."""


def silent_s(policy: SchedulingConfig) -> float:
    """For how long leases must be over, and no sign of life have come, before it is said that a machine is silent.

    A whole lease at least. It is renewed three times in its length, so six renewals in a row have then failed: a slow
    disk, a long garbage collection or a restart of the service is over by then.
    """
    return max(SILENT_S, policy.lease_s)


class Neighbours:
    """The other machines as the supervisor of one sees them."""

    def __init__(self, store: Store, node: str, policy: SchedulingConfig, steady: Callable[[], float]) -> None:
        """steady: seconds by a clock that nobody sets."""
        self._store = store
        self._node = node
        self._silent_s = silent_s(policy)
        self._steady = steady
        self._heard: dict[str, tuple[float | None, float]] = {}
        """By machine: its newest sign of life as it was told, and since when here no newer one has been seen.

        That one is old is not read off its time, which another machine's clock has told.
        """
        self._looked = -math.inf

    def look(self, now: float) -> None:
        """Let the active jobs of machines that have been silent for long say so. Raises StoreError."""
        jobs = self._store.jobs.active_elsewhere(self._node)
        nodes = {job.node for job in jobs}
        beats = self._store.services.newest() if nodes else {}
        at = self._steady()
        # Nobody could be heard while nobody looked, or while the store was away, for them too: that does not count.
        heard = self._heard if at - self._looked <= self._silent_s / 2 else {}
        self._looked = at
        self._heard = {
            node: heard[node] if node in heard and heard[node][0] == beats.get(node) else (beats.get(node), at)
            for node in nodes
        }
        for node in sorted({job.node for job in jobs if job.reason != NODE_SILENT}):
            beat, since = self._heard[node]
            if at - since >= self._silent_s:
                self._tell(node, beat, now)

    def _tell(self, node: str, beat: float | None, now: float) -> None:
        with self._store.change() as change:
            ends = lease_ends(change.leases(node))
            for job in change.jobs(states=ACTIVE_STATES, node=node):
                if now - ends.get(job.id, -math.inf) < self._silent_s:
                    continue
                seen = beat if beat is not None else seen_until(job, ends, now)
                after = handle(job, Silent(seen, now)).job
                if after != job:
                    change.save(after)
                    logger.warning("%s: %s", job.id, after.message)


def silent_jobs(store: Store, node: str) -> tuple[Job, ...]:
    """Active jobs of other machines than this, of which it is said that nobody looks after them."""
    return store.jobs.active_elsewhere(node, NODE_SILENT)


def give_up(store: Store, fits: Callable[[Job], bool], by: str, now: float) -> tuple[Job, ...]:
    """End those of the silent machines' jobs that fit as lost, and give their leases back, all in one transaction.

    Returns them as they then are. One whose machine has answered meanwhile stays as it is. by: who says so.
    """
    lost = []
    with store.change() as change:
        ends = lease_ends(change.leases())
        for job in filter(fits, change.jobs(states=ACTIVE_STATES)):
            seen = seen_until(job, ends, now)
            after = handle(job, GivenUp(seen, now, by)).job
            if after == job:
                continue
            after = replace(after, result=no_result(after, after.message))
            lost.append(change.save(note_attempt(change, job, after, job.progress, seen)))
            change.release(job.id)
    return tuple(lost)


def lease_ends(leases: Iterable[Lease]) -> dict[str, float]:
    """When the last lease of each job ends."""
    ends: dict[str, float] = {}
    for lease in leases:
        ends[lease.job_id] = max(lease.expires, ends.get(lease.job_id, -math.inf))
    return ends


def seen_until(job: Job, ends: dict[str, float], now: float) -> float:
    """Until when somebody looked after a job, at most: its leases are renewed as long."""
    began = now if job.attempt_began is None else job.attempt_began
    return min(now, ends.get(job.id, began))
