"""Lists of jobs as JSON, in which what cannot have changed is not written again."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from pydantic_core import to_json

from drumline.jobs.records import Job
from drumline.jobs.store import Page
from drumline.service.views import job_values

NUM_KEPT = 4096
"""Jobs whose JSON is kept, a kilobyte each."""


class _Same:
    """A job that is equal to another one of its id, version and reason to wait: so are those that wait or have ended.

    See `jobs.store.rows.KnownJobs`. The progress of one that runs changes without its version.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._key = (job.id, job.version, job.waits_for)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._key == other._key


class JobLists:
    """Writes lists of the jobs of one store. For all threads."""

    def __init__(self) -> None:
        self._kept = lru_cache(maxsize=NUM_KEPT)(_written)

    def json(self, page: Page[Job], places: Mapping[str, int], base: str) -> bytes:
        """A JobList. places: in the queue, by the jobs' ids; base: see `job_values`."""
        items = b",".join(self._item(job, base, places.get(job.id)) for job in page.items)
        return b'{"items":[%b],"next":%b,"total":%d}' % (items, to_json(page.next_cursor), page.total)

    def _item(self, job: Job, base: str, place: int | None) -> bytes:
        write = self._kept if job.state == "queued" or job.has_ended else _written
        return write(_Same(job), base, place)


def _written(same: _Same, base: str, place: int | None) -> bytes:
    return to_json(job_values(same.job, base, place))
