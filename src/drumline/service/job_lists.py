"""Lists of jobs as JSON, in which what cannot have changed is not written again."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from pydantic_core import to_json

from drumline.jobs.records import Job
from drumline.jobs.store import Page
from drumline.service.views import job_values

NUM_KEPT = 2048
"""Jobs whose JSON is kept, a kilobyte each."""


class JobLists:
    """Writes lists of the jobs of one store. For all threads."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], bytes] = {}
        """By all that the JSON of a job that waits or has ended depends on; the jobs themselves are not held."""
        self._lock = threading.Lock()

    def json(self, page: Page[Job], places: Mapping[str, int], base: str) -> bytes:
        """A JobList. places: in the queue, by the jobs' ids; base: see `job_values`."""
        items = b",".join(self._item(job, base, places.get(job.id)) for job in page.items)
        return b'{"items":[%b],"next":%b,"total":%d}' % (items, to_json(page.next_cursor), page.total)

    def _item(self, job: Job, base: str, place: int | None) -> bytes:
        """See `jobs.store.rows.KnownJobs`; the progress of a job that runs changes without its version."""
        if job.state != "queued" and not job.has_ended:
            return to_json(job_values(job, base, place))
        key = (job.id, job.version, job.waits_for, base, place)
        known = self._kept.get(key)
        return self._keep(key, to_json(job_values(job, base, place))) if known is None else known

    def _keep(self, key: tuple[object, ...], item: bytes) -> bytes:
        """In place of what was kept first, where there is much."""
        with self._lock:
            self._kept[key] = item
            if len(self._kept) > NUM_KEPT:
                del self._kept[next(iter(self._kept))]
        return item
