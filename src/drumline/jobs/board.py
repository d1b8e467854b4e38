"""The use cases of jobs: the one door through which they are asked for, seen, stopped and removed."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drumline.config.service import ServiceConfig
from drumline.errors import Conflict, Forbidden, NotFound, Quota, StoreError
from drumline.jobs.defaults import GPUConfig, changed
from drumline.jobs.devices import node_of
from drumline.jobs.intake import Accepted, accept, check_priority, most_priority
from drumline.jobs.intake_paths import Places
from drumline.jobs.plans import Planned, Plans, PlanView
from drumline.jobs.prediction_retry import bring_prediction, forget_prediction, has_rows_to_go_on
from drumline.jobs.queue_order import Queue
from drumline.jobs.records import Job
from drumline.jobs.requests import JobRequest, Who
from drumline.jobs.retry_folder import ROWS, bring_rows, bring_run, has_checkpoint, write_rows, writing
from drumline.jobs.silence import give_up
from drumline.jobs.states import NODE_SILENT, Asked, handle
from drumline.jobs.store.values import Idempotency, JobFilter, Page, Versioned

if TYPE_CHECKING:
    from drumline.jobs.store import Store


class Board:
    """Jobs as their owners see them; everybody else's are not there."""

    def __init__(
        self,
        store: Store,
        config: ServiceConfig,
        wake: Callable[[], None] = lambda: None,
        has_gpus: Callable[[], bool] = lambda: False,
    ) -> None:
        """wake: called after each change that the supervisor should look at soon. has_gpus: of this machine."""
        self._store = store
        self._config = config
        self._wake = wake
        self._has_gpus = has_gpus
        self._data_dir = config.data_dir.expanduser().absolute()
        self._node = node_of(config)
        self._plans = Plans(store, self._data_dir / "plans", self._node)
        self.queue = Queue(store, self._node, config.scheduling)
        """The order of the jobs of this machine that wait."""

    def submit(
        self,
        request: JobRequest,
        who: Who,
        idempotency: Idempotency | None = None,
        *,
        defaults_version: int | None = None,
        plan: Planned | None = None,
    ) -> Job:
        """Check a request and queue it; sent again with the same idempotency key it is the job that was made first.

        defaults_version: of the defaults that the request has already, and what it leaves out it does not want; None:
        it takes what there is. plan: what it was made of, which is gone with that where it has texts. Raises
        Forbidden for a viewer, ConfigError, DataError and TooLarge for a request that cannot be done, Quota,
        IdempotencyConflict, and NotFound where the plan is another job's by now.
        """
        _may_change(who)
        if (earlier := self._made_before(idempotency)) is not None:
            return earlier
        accepted = self._accept(request, who, defaults_version)
        self._check_quota(who.owner)
        now = time.time()
        job = Job(
            id=_new_id(now),
            owner=who.owner,
            work=accepted.work,
            resources=accepted.resources,
            created=now,
            name=request.name,
            user_id=None if request.user_id is None else str(request.user_id),
            tags=tuple(dict.fromkeys(request.tags)),
            training_type=request.training_type,
            node=self._node,
            queued_since=now,
        )
        rows = accepted.rows
        fill = (lambda folder: None) if rows is None else (lambda folder: write_rows(folder, rows))
        if plan is None or plan.folder is None:
            return self._add(job, who, idempotency, fill)
        kept = self._add(job, who, idempotency, fill, plan.row)
        self._plans.forget(plan.folder)
        return kept

    def get(self, job_id: str, who: Who) -> Job:
        """A job. Raises NotFound, also for another owner's."""
        job = self._store.jobs.get(job_id)
        if job is None or not _may_see(job.owner, who):
            raise _no_job(job_id)
        return job

    def find(self, wanted: JobFilter, who: Who, *, cursor: str | None = None, limit: int = 50) -> Page[Job]:
        """Jobs that fit, the newest first, of those that one may see."""
        if not _sees_all(who):
            if wanted.owner not in (None, who.owner):
                return Page((), None, 0)
            wanted = replace(wanted, owner=who.owner)
        return self._store.jobs.find(wanted, cursor, limit)

    def cancel(self, job_id: str, who: Who) -> Job:
        """Ask a job to stop: a queued one is over at once, one that runs saves and ends, an ended one stays as it is.

        One whose machine is silent, as it says, is lost. Raises NotFound and Forbidden.
        """
        job = self._to_change(job_id, who)
        if job.reason == NODE_SILENT and (lost := self.give_up(lambda each: each.id == job_id, who)):
            return lost[0]
        asked = Asked("cancel", time.time(), who.owner)

        def stopped(job: Job) -> Job:
            job = handle(job, asked).job
            # One that never had a process has nobody who tells what became of it.
            return replace(job, result={"success": False}) if job.has_ended and not job.result else job

        cancelled = self._store.jobs.update(job_id, stopped)
        if cancelled is None:
            raise _no_job(job_id)
        self.note("job.cancel", who, job_id)
        self._jobs_changed()
        return cancelled

    def give_up(self, fits: Callable[[Job], bool], who: Who) -> tuple[Job, ...]:
        """End jobs of machines that are silent, as these jobs say, as lost; those of this machine are not among them.

        fits: which of them, of those that this caller may change.
        """

        def may_go(job: Job) -> bool:
            return job.node != self._node and (who.role == "admin" or job.owner == who.owner) and fits(job)

        _may_change(who)
        lost = give_up(self._store, may_go, who.owner, time.time())
        for job in lost:
            self.note("job.give_up", who, job.id)
        return lost

    def retry(
        self, job_id: str, who: Who, *, from_checkpoint: bool = False, idempotency: Idempotency | None = None
    ) -> Job:
        """A new job that does an ended one's work again, from its newest checkpoint or from the beginning.

        Its priority is the old one's, as far as this caller may ask for that.

        Raises NotFound, Forbidden, Quota, and Conflict for one that has not ended, or whose checkpoints or texts are
        not there.
        """
        old = self._to_change(job_id, who)
        if (earlier := self._made_before(idempotency)) is not None:
            return earlier
        source = self.folder(old)
        self._check_retry(old, source, from_checkpoint=from_checkpoint)
        self._check_quota(old.owner)
        now = time.time()
        most = most_priority(self._config, who)
        job = Job(
            id=_new_id(now),
            owner=old.owner,
            work=old.work,
            resources=replace(old.resources, priority=min(old.resources.priority, most)),
            created=now,
            name=old.name,
            user_id=old.user_id,
            tags=old.tags,
            training_type=old.training_type,
            node=self._node,
            retry_of=old.id,
            queued_since=now,
        )

        def bring(folder: Path) -> None:
            bring_rows(source, folder)
            if from_checkpoint:
                (bring_prediction if old.work.kind == "infer" else bring_run)(source, folder)

        return self._add(job, who, idempotency, bring)

    def delete_data(self, job_id: str, who: Who) -> None:
        """Remove texts and prepared data of an ended job; what it came to stays, but for answers, which hold the texts.

        Raises NotFound, Forbidden, and Conflict for one that has not ended.
        """
        job = self._to_change(job_id, who)
        if not job.has_ended:
            raise Conflict(f"{job_id} is {job.state} and may need its data", "cancel it first, or wait for its end")
        self._check_node(job)
        folder = self.folder(job)
        with writing(folder):
            (folder / ROWS).unlink(missing_ok=True)
            if job.work.kind == "infer":
                forget_prediction(folder, job.work.output)
            for cache in (folder / "cache", folder / ".drumline"):
                if cache.is_dir():
                    shutil.rmtree(cache)
        self.note("job.delete_data", who, job_id)

    def plan(
        self,
        request: JobRequest,
        who: Who,
        idempotency: Idempotency | None = None,
        *,
        defaults_version: int | None = None,
    ) -> PlanView:
        """Check a request as submit does, and keep it under an id; model and data may be left for its start.

        Sent again with the same idempotency key it is the plan that was made first, while that is there. Raises what
        submit does.
        """
        _may_change(who)
        accepted = self._accept(request, who, defaults_version, complete=False)
        kept = self._plans.keep(request, accepted, who.owner, idempotency)
        if kept.is_new:
            self.note("plan.keep", who, kept.id)
        return kept

    def planned(self, plan_id: str, who: Who) -> Planned:
        """The request that was kept under an id, with its texts. Raises NotFound, and Conflict on another machine."""
        return self._plans.read(plan_id, lambda owner: _may_see(owner, who))

    def drop_plan(self, plan_id: str, who: Who) -> None:
        """Remove a plan, with its texts. Raises NotFound and Forbidden, and Conflict where these lie elsewhere."""
        _may_change(who)
        self._plans.drop(plan_id, lambda owner: _may_see(owner, who))
        self.note("plan.delete_data", who, plan_id)

    def defaults(self) -> tuple[GPUConfig | None, int]:
        """What later jobs take that do not say it, and its version; None and 0: nobody has set anything."""
        kept = self._store.settings.latest("defaults")
        return (None, 0) if kept is None else (GPUConfig.model_validate(dict(kept.values)), kept.version)

    def set_defaults(self, change: Mapping[str, Any], who: Who, expected: int | None = None) -> tuple[GPUConfig, int]:
        """Change some of the defaults; only an admin may.

        expected: the version that it is a change of; raises Conflict where there is another one by now. Raises
        Forbidden, and ConfigError for values that cannot be meant.
        """
        if who.role != "admin":
            raise Forbidden("the defaults of all jobs are an admin's matter", "ask an admin, or say it in each request")
        current, version = self.defaults()
        config = changed(current or GPUConfig(), change)
        following = version if expected is None else expected
        kept = self._store.settings.put("defaults", config.model_dump(mode="json"), who.owner, following)
        self.note("defaults.set", who, f"version {kept.version}")
        return config, kept.version

    def folder(self, job: Job) -> Path:
        """Where everything of a job lies."""
        return self._data_dir / "jobs" / job.id

    def files(self, job: Job) -> Path:
        """The same, for who reads there. Raises Conflict where it is not here, and the job is another machine's."""
        folder = self.folder(job)
        if not folder.is_dir():
            self._check_node(job)
        return folder

    def _made_before(self, idempotency: Idempotency | None) -> Job | None:
        """The job of the same request, before anything else is looked at: by now that may be full, or gone."""
        return None if idempotency is None else self._store.jobs.added_before(idempotency)

    def _accept(
        self, request: JobRequest, who: Who, defaults_version: int | None, *, complete: bool = True
    ) -> Accepted:
        check_priority(request, self._config, who)
        defaults = None
        if defaults_version is None:
            defaults, defaults_version = self.defaults()
        places = Places(self._config, lambda job_id: self._may_use(job_id, who))
        found = accept(request, self._config, places, defaults, has_gpus=self._has_gpus(), complete=complete)
        return replace(found, work=replace(found.work, defaults_version=defaults_version))

    def _may_use(self, job_id: str, who: Who) -> bool:
        """Whether what a job has made may be named as a model."""
        job = self._store.jobs.get(job_id)
        return job is not None and _may_see(job.owner, who)

    def _to_change(self, job_id: str, who: Who) -> Job:
        job = self.get(job_id, who)
        _may_change(who)
        if who.role != "admin" and job.owner != who.owner:
            raise Forbidden(f"{job_id} is {job.owner}'s", "ask its owner, or an admin")
        return job

    def _check_retry(self, old: Job, source: Path, *, from_checkpoint: bool) -> None:
        if not old.has_ended:
            raise Conflict(f"{old.id} is {old.state}", "wait for its end, or cancel it first")
        self._check_node(old)
        if old.work.kind != "train" and not old.work.data and not (source / ROWS).is_file():
            raise Conflict(f"the texts of {old.id} are not there any more", "send the request again, with its texts")
        if from_checkpoint and old.state == "succeeded":
            raise Conflict(f"{old.id} is done: nothing is left to go on with", "retry it from the beginning")
        if from_checkpoint and not (has_rows_to_go_on if old.work.kind == "infer" else has_checkpoint)(source):
            what = "answered no row" if old.work.kind == "infer" else "no checkpoint"
            raise Conflict(f"{old.id} has {what}", "retry it from the beginning")

    def _check_node(self, job: Job) -> None:
        if job.node != self._node:
            raise Conflict(f"the files of {job.id} lie on {job.node}", "ask the service on that machine")

    def _check_quota(self, owner: str) -> None:
        most = self._config.limits.max_queued
        if self._store.jobs.counts(owner).get("queued", 0) >= most:
            raise Quota(f"{owner} has {most:,} jobs that wait", "cancel some of them, or wait until they have run")

    def _add(
        self,
        job: Job,
        who: Who,
        idempotency: Idempotency | None,
        fill: Callable[[Path], None],
        plan: Versioned | None = None,
    ) -> Job:
        """Keep a new job: its folder first, so that a job that is there has all that it needs."""
        folder = self.folder(job)
        with writing(folder):
            folder.mkdir(mode=0o700, parents=True)
        try:
            with writing(folder):
                fill(folder)
            kept, is_new = self._store.jobs.add(job, idempotency, plan)
        except BaseException:
            with suppress(StoreError):  # a commit whose answer was lost may have been one: then the folder stays
                if self._store.jobs.get(job.id) is None:
                    shutil.rmtree(folder, ignore_errors=True)
            raise
        if not is_new:
            shutil.rmtree(folder, ignore_errors=True)
            return kept
        self.note("job.retry" if job.retry_of else "job.submit", who, job.id)
        self._jobs_changed()
        return kept

    def _jobs_changed(self) -> None:
        self.queue.look_again()
        self._wake()

    def note(self, event: str, who: Who, what: str) -> None:
        """Write into the audit log that somebody did something, as event "job.cancel" to what "job-20260102-…"."""
        self._store.log.audit(event, who.name, what, time.time())


def _sees_all(who: Who) -> bool:
    return who.role == "admin" or who.owner == "*"


def _may_see(owner: str, who: Who) -> bool:
    return _sees_all(who) or owner == who.owner


def _may_change(who: Who) -> None:
    if who.role == "viewer":
        raise Forbidden("a viewer's key changes nothing", "use a key with the role user")


def _no_job(job_id: str) -> NotFound:
    return NotFound(f"there is no job {job_id[:100]!r}", "see the list of jobs for those that there are")


def _new_id(now: float) -> str:
    return time.strftime("job-%Y%m%d-%H%M%S-", time.gmtime(now)) + secrets.token_hex(5)
