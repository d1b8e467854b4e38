"""Lists of jobs as JSON, in which what cannot have changed is not written again."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_core import to_json

from drumline.jobs.records import Job
from drumline.jobs.store import Page
from drumline.service.kept_json import KeptJson
from drumline.service.views import job_values

KEPT_BYTES = 3 * 2**20
"""Of jobs' JSON, a kilobyte each."""


class JobLists:
    """Writes lists of the jobs of one store. For all threads."""

    def __init__(self) -> None:
        self._kept = KeptJson(KEPT_BYTES)
        """Of jobs that wait or have ended; the jobs themselves are not held."""

    def json(self, page: Page[Job], places: Mapping[str, int], base: str) -> bytes:
        """A JobList. places: in the queue, by the jobs' ids; base: see `job_values`."""
        items = b",".join(self._item(job, base, places.get(job.id)) for job in page.items)
        return b'{"items":[%b],"next":%b,"total":%d}' % (items, to_json(page.next_cursor), page.total)

    def _item(self, job: Job, base: str, place: int | None) -> bytes:
        """See `jobs.store.rows.KnownJobs`; the progress of a job that runs changes without its version."""
        if job.state != "queued" and not job.has_ended:
            return to_json(job_values(job, base, place))
        key = (job.id, job.version, job.waits_for, base, place)
        return self._kept.get(key, lambda: to_json(job_values(job, base, place)))
