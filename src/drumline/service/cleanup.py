"""Gives back what nobody uses any more: leases without a job, processes that a job left, caches, folders of nothing."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from drumline.jobs.adoption import end_marked, marks
from drumline.jobs.leftovers import left_processes
from drumline.jobs.plans import KEPT_S, remove_expired
from drumline.jobs.records import ACTIVE_STATES, Job
from drumline.jobs.retry_folder import ROWS

if TYPE_CHECKING:
    from drumline.jobs.store import Store

REMOVED = ".removed"
"""Where a cache lies on its way out; one that a kill left there goes the next time."""
YOUNG_S = 3600.0
"""A folder without a job may be one that is just being made; after so long it is not."""
CACHES = ("cache", ".drumline")
"""Folders in a job's own that are made again when they are needed."""
MADE = ("run", "model", "command.log")
"""In a job's own folder what its attempts have left."""


@dataclass
class Cleaned:
    """What was given back."""

    leases: list[str] = field(default_factory=list)
    """Devices."""
    processes: list[int] = field(default_factory=list)
    stuck: list[int] = field(default_factory=list)
    """Processes that did not end: a driver or a disk holds them."""
    folders: int = 0
    freed_bytes: int = 0
    notes: list[str] = field(default_factory=list)


class Cleaner:
    """One cleaning of one machine, by one who may touch some jobs."""

    def __init__(
        self, store: Store, data_dir: Path, node: str, may_touch: Callable[[Job], bool], *, whole: bool
    ) -> None:
        """whole: also what is nobody's own: the shared cache, old plans, and folders that no job has. For admins."""
        self._store, self._data_dir, self._node = store, data_dir, node
        self._may_touch, self._whole = may_touch, whole
        self._done = Cleaned()

    def run(self) -> Cleaned:
        """Clean, in an order in which no lease is given on while a process of its job lives."""
        for job, mark, pids in left_processes(self._store, self._node):
            if self._may_touch(job):
                stuck = end_marked(mark)
                self._done.stuck += stuck
                self._done.processes += sorted({*pids} - {*stuck})
        self._leases()
        self._job_caches()
        if self._whole:
            self._shared_cache()
            self._plans()
            self._folders_of_nothing()
        return self._done

    def _ended(self, job_id: str) -> Job | None:
        job = self._store.jobs.get(job_id)
        return job if job is not None and job.has_ended and job.node == self._node else None

    def _leases(self) -> None:
        for lease in self._store.leases.all(self._node):
            job = self._ended(lease.job_id)
            if job is None or not self._may_touch(job):
                continue
            if any(mark.partition("/")[0] == job.id for mark in marks()):
                self._done.notes.append(f"{lease.device} stays held: processes of {job.id} cannot be ended")
                continue
            with self._store.change() as change:  # an end state is final: nobody starts this job meanwhile
                change.release(job.id)
            self._done.leases.append(lease.device)

    def _job_caches(self) -> None:
        for folder in _folders(self._data_dir / "jobs"):
            caches = [folder / name for name in CACHES if (folder / name).is_dir()]
            if caches and (job := self._ended(folder.name)) is not None and self._may_touch(job):
                for cache in caches:
                    self._remove(cache)

    def _shared_cache(self) -> None:
        cache = self._data_dir / "cache"
        removed = self._data_dir / REMOVED
        with self._store.change() as change:
            busy = bool(change.jobs(states=ACTIVE_STATES, node=self._node))
            # Under the lock, so that no job is started meanwhile; it is only put aside, for removing takes long.
            if not busy and _entries(cache):
                removed.mkdir(mode=0o700, exist_ok=True)
                cache.rename(removed / secrets.token_hex(4))
        if busy and _entries(cache):
            self._done.notes.append("the cache of prepared data stays: jobs run, and may read it")
        if removed.is_dir():
            self._remove(removed)

    def _plans(self) -> None:
        old = remove_expired(self._store, self._data_dir / "plans", time.time(), self._remove)
        if old:
            self._done.notes.append(f"texts of plans older than {KEPT_S / 86_400:g} days were removed: {len(old)}")

    def _folders_of_nothing(self) -> None:
        kept = []
        for folder in _folders(self._data_dir / "jobs"):
            with suppress(OSError):
                age = time.time() - folder.stat().st_mtime
                if age <= YOUNG_S or self._store.jobs.get(folder.name) is not None:
                    continue
                # Of what was half made there is nothing else. A job that waits, in another store, has texts.
                if any((folder / name).exists() for name in MADE) or ((folder / ROWS).exists() and age <= KEPT_S):
                    kept.append(folder.name)
                else:
                    self._remove(folder)
        if kept:
            more = ", …" if len(kept) > 3 else ""
            self._done.notes.append(
                "folders of jobs that this store does not know stay, since another store on the same data_dir may know "
                f"them: {len(kept)} ({', '.join(kept[:3])}{more})"
            )

    def _remove(self, path: Path) -> None:
        size = _size(path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()
        if path.exists():
            self._done.notes.append(f"{path.name} could not be removed")
        else:
            self._done.folders += 1
            self._done.freed_bytes += size


def _folders(path: Path) -> list[Path]:
    return [entry for entry in _entries(path) if entry.is_dir() and not entry.is_symlink()]


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _size(path: Path) -> int:
    """Bytes below a path, as far as they can be read."""
    total = 0
    with suppress(OSError):
        total = path.lstat().st_size
        if path.is_dir() and not path.is_symlink():
            total = sum(each.lstat().st_size for each in path.rglob("*") if not each.is_dir())
    return total
