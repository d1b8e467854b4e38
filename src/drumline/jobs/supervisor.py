"""Looks after the jobs of one machine: sees what became of them, lets the scheduler decide, and has it done.

Nothing that it needs is in its memory alone: one that was killed is followed by another, and two beside each other do
no harm, since every change is a transaction and every effect may be repeated.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from drumline.config.service import ServiceConfig
from drumline.errors import Conflict, StoreError
from drumline.jobs.adoption import since_boot
from drumline.jobs.devices import node_of
from drumline.jobs.events import Asked, Event, Granted, Heard, Kill, Overdue, Release
from drumline.jobs.executor import Executor
from drumline.jobs.leftovers import Leftovers
from drumline.jobs.prediction_results import PredictionWatch
from drumline.jobs.records import ACTIVE_STATES, Inventory, Job, Lease
from drumline.jobs.results import DEVICE_SECONDS, no_result, progress_of, result_of, watch_of
from drumline.jobs.scheduler import decide
from drumline.jobs.silence import LOOK_S, Neighbours
from drumline.jobs.spending import SPENT_BEFORE, note_attempt, with_device_seconds
from drumline.jobs.states import NODE_SILENT, handle, with_the_clock
from drumline.jobs.store import Change, Store
from drumline.monitor.runs import RunWatch

logger = logging.getLogger("drumline")

TICK_S = 0.25
"""Between two looks, unless something wakes it up."""
SCHEDULE_S = 1.0
"""Between two decisions when nothing has happened, at least."""
SCHEDULE_SHARE = 20.0
"""And so many times as long as a decision takes: a long queue must not take a core for itself."""
PROGRESS_S = 1.0
BEAT_S = 2.0
STOP_AGAIN_S = 1.0
"""Between two requests to stop; a keeper heeds the first alone."""
START_AGAIN_S = 3.0
"""After which a keeper that has not begun is started once more: who granted the devices may have been killed."""
MOST_PAUSE_S = 5.0
"""Between two tries while the store cannot be reached."""
_STOP_MARGIN_S = 10.0


class Supervisor:
    """One service's part in looking after the jobs of its node."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        inventory: Callable[[], Inventory],
        config: ServiceConfig,
        clock: Callable[[], float] = time.time,
        boot: Callable[[], float] = since_boot,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """inventory: answers at once, see DeviceWatch.

        clock: seconds since 1970, which may be set at any moment: no job ends by it. boot: seconds since the machine's
        start, as Job.pid_began. steady: seconds since whenever.
        """
        self.node = node_of(config)
        self.id = f"{self.node}:{os.getpid()}:{secrets.token_hex(4)}"
        self._store = store
        self._executor = executor
        self._inventory = inventory
        self._config = config
        self._clock = clock
        self._boot = boot
        self._steady = steady
        self._since: dict[tuple[str, int, str], float] = {}
        """Since when each active job has been in its state (by id, attempt and state), as this process saw it."""
        self._asked: dict[str, float] = {}
        """When a job was asked to stop last."""
        self._watches: dict[tuple[str, int], RunWatch | PredictionWatch] = {}
        self._done: dict[str, float] = {}
        """When something that is done now and then was done last, by `clock`."""
        self._troubles: dict[str, str] = {}
        """What was said last of a job that cannot be looked after."""
        self._leftovers = Leftovers(store, self.node)
        self._neighbours = Neighbours(store, self.node, config.scheduling, steady)
        self._may_start = True
        self._schedule_s = SCHEDULE_S
        self._is_first = True
        self._woken = threading.Event()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Look after the jobs in a thread, until close()."""
        self._thread = threading.Thread(target=self._loop, name="drumline supervisor", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look soon: something has changed."""
        self._hurry()
        self._woken.set()

    def close(self, stop_jobs: bool = False) -> None:
        """Stop looking; what runs goes on without, or with stop_jobs is saved, ended and queued again first."""
        self._end.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if stop_jobs:
            self._stop_all()
        self._executor.close()
        with suppress(StoreError):  # it is found to be gone by its silence too
            self._store.services.forget(self.id)

    def tick(self) -> None:
        """Look once. Raises StoreError where the store cannot be reached; a job that makes trouble stops no other."""
        now = self._clock()
        if self._is_due("beat", BEAT_S, now):
            self._store.services.heartbeat(self.id, self.node, os.getpid(), now)
        jobs = self._store.jobs.active(self.node)
        self._keep_only(jobs)
        for ended in self._leftovers.end():
            self._executor.tidy(ended)
        if jobs and self._is_due("renew", self._config.scheduling.lease_s / 3, now):
            until = now + self._config.scheduling.lease_s
            self._store.leases.renew(self.node, [job.id for job in jobs], until)
        changed = [self._guarded(job, self._look_after, now) for job in jobs]
        if any(changed):
            self._hurry()
        if self._may_start and self._is_due("schedule", self._schedule_s, now):
            began = time.perf_counter()
            self._schedule_guarded(now)
            self._schedule_s = max(SCHEDULE_S, SCHEDULE_SHARE * (time.perf_counter() - began))
        if self._is_due("progress", PROGRESS_S, now):
            self._tell_progress([job for job, news in zip(jobs, changed, strict=True) if not news])
        if self._is_due("neighbours", LOOK_S, now):
            self._neighbours.look(now)
        self._is_first = False

    def _loop(self) -> None:
        pause, said = TICK_S, ""
        while not self._end.is_set():
            self._woken.clear()
            try:
                self.tick()
                pause, said = TICK_S, ""
            except Exception as error:  # whatever it is: the jobs go on, and so does the next look
                pause = min(MOST_PAUSE_S, 2 * pause)
                if str(error) != said:
                    logger.exception("the jobs cannot be looked after now; trying again")
                said = str(error)
            self._woken.wait(pause)

    def _hurry(self) -> None:
        """Decide at the next look, unless decisions take so long that they need their pause."""
        if self._schedule_s <= SCHEDULE_S:
            self._done.pop("schedule", None)

    def _keep_only(self, jobs: Iterable[Job]) -> None:
        """Keep nothing in mind but of jobs that are active: it may have been another service that saw the end."""
        now, before = self._steady(), self._watched()
        self._since = {key: self._since.get(key, now) for key in ((job.id, job.attempt, job.state) for job in jobs)}
        attempts = {(job_id, attempt) for job_id, attempt, _ in self._since}
        ids = {"", *self._watched()}
        if before - ids:
            self._leftovers.expect()
        self._watches = {key: watch for key, watch in self._watches.items() if key in attempts}
        self._troubles = {job_id: text for job_id, text in self._troubles.items() if job_id in ids}
        self._asked = {job_id: at for job_id, at in self._asked.items() if job_id in ids}
        self._executor.keep_only(attempts)

    def _watched(self) -> set[str]:
        """Jobs that were active when this process looked last, but for those whose end it has seen itself."""
        return {job_id for job_id, _, _ in self._since}

    def _age_s(self, job: Job) -> float:
        """How long this process has seen the job in its state."""
        now = self._steady()
        return now - self._since.setdefault((job.id, job.attempt, job.state), now)

    def _is_due(self, what: str, every_s: float, now: float) -> bool:
        # A clock that was set back makes everything due, not nothing for hours.
        if 0 <= now - self._done.get(what, -every_s) < every_s:
            return False
        self._done[what] = now
        return True

    def _guarded(self, job: Job, look: Callable[[Job, float], bool], now: float) -> bool:
        """One job's trouble is told, and stays its own."""
        try:
            changed = look(job, now)
        except Conflict:  # somebody else was quicker: the next look sees what has become of it
            return True
        except StoreError:
            raise
        except OSError as error:
            self._tell_trouble(job, f"its folder cannot be read: {error}")
            return False
        except Exception as error:
            self._tell_trouble(job, f"it cannot be looked after: {type(error).__name__}: {error}")
            logger.debug("%s", job.id, exc_info=True)
            return False
        return changed

    def _tell_trouble(self, job: Job, text: str) -> None:
        if self._troubles.get(job.id) != text:
            self._troubles[job.id] = text
            logger.error("%s: %s", job.id, text)
            self._store.jobs.update(job.id, lambda found: None if found.has_ended else replace(found, message=text))

    def _look_after(self, job: Job, now: float) -> bool:
        """See what has become of an active job, and do what its state asks for; returns whether it has changed."""
        silent = job.reason == NODE_SILENT  # as another machine said of this one, which answers again
        event = Heard(now) if silent else self._executor.look(job) or self._overtime(job, now)
        if job.id in self._troubles:
            told = self._troubles.pop(job.id)
            self._store.jobs.update(job.id, lambda found: replace(found, message="") if found.message == told else None)
            return True
        if event is not None:
            return self._apply(job, event)
        if job.state == "starting" and job.pid is None:
            if self._is_first or self._age_s(job) >= START_AGAIN_S:
                self._executor.start(job)
        elif job.state == "stopping":
            if self._steady() - self._asked.get(job.id, -math.inf) >= STOP_AGAIN_S:
                self._asked[job.id] = self._steady()
                self._executor.ask_to_stop(job)
            overdue = self._age_s(job) >= self._config.scheduling.stop_grace_s
            if overdue and Kill() in handle(job, Overdue(now, job.attempt)).do:
                self._executor.kill(job)
        return False

    def _overtime(self, job: Job, now: float) -> Event | None:
        limit = job.resources.time_limit_s
        if limit is None or job.stop in ("cancel", "time_limit") or job.pid_began is None:
            return None
        return Asked("time_limit", now) if job.used_s + self._boot() - job.pid_began > limit else None

    def _apply(self, job: Job, event: Event) -> bool:
        """Bring a job to where the event takes it, with what became of it, in one transaction."""
        job = with_the_clock(job, event.now, self._boot())
        expected = with_device_seconds(job, handle(job, event).job)
        # Of one that is queued again too: it may be cancelled before it comes to another attempt.
        result, progress = ({}, {}) if expected.state in ACTIVE_STATES else self._outcome(expected)
        with self._store.change() as change:
            active = change.jobs(states=ACTIVE_STATES, node=self.node)
            fresh = next((each for each in active if each.id == job.id), None)
            if fresh is None or fresh.attempt != job.attempt:
                return True
            fresh = with_the_clock(fresh, event.now, self._boot())
            step = handle(fresh, event)
            after = step.job
            if after == fresh:
                return False
            if after.state not in ACTIVE_STATES:
                after = replace(after, result={**result, "success": after.state == "succeeded"})
                after = note_attempt(change, fresh, after, progress, event.now)
            change.save(after)
            if Release() in step.do:
                change.release(job.id)
        self._told(after)
        if after.state == "stopping":
            self._executor.ask_to_stop(after)
        return True

    def _told(self, job: Job) -> None:
        if job.state in ACTIVE_STATES:
            return
        self._since = {key: since for key, since in self._since.items() if key[0] != job.id}
        logger.info("%s: %s%s", job.id, job.state, f" ({job.reason})" if job.reason else "")
        self._executor.tidy(job)

    def _outcome(self, job: Job) -> tuple[dict[str, Any], dict[str, Any]]:
        """What became of a job, and how far its run has come: no more than its folder tells."""
        progress: dict[str, Any] = {}
        try:
            facts = self._watch(job).look()
            progress = progress_of(facts)
            return result_of(job, self._executor.folder(job.id), self._config.scheduling, facts), progress
        except Exception as error:  # an unreadable line must not keep a job from having ended
            logger.warning("%s: what became of it cannot be read: %s", job.id, error)
            return no_result(job, error), progress

    def _watch(self, job: Job) -> RunWatch | PredictionWatch:
        """What follows the run of a job's present attempt."""
        key = (job.id, job.attempt)
        if key not in self._watches:
            self._watches[key] = watch_of(job, self._executor.folder(job.id), self._clock)
        return self._watches[key]

    def _schedule_guarded(self, now: float) -> None:
        try:
            self._schedule(now)
            self._troubles.pop("", None)
        except Conflict:  # another service was quicker
            self._hurry()
        except StoreError:
            raise
        except Exception as error:  # what runs is looked after all the same
            if self._troubles.get("") != str(error):
                logger.exception("no job can be started now")
            self._troubles[""] = str(error)

    def _schedule(self, now: float) -> None:
        """Let the scheduler decide, keep that, and have it done."""
        inventory, policy = self._inventory(), self._config.scheduling
        if inventory.time == 0.0:
            return
        problem = self._executor.problem()  # a disk may take its time, for which nobody is to wait
        begun: list[Job] = []
        stopped: list[Job] = []
        with self._store.change() as change:
            jobs = {job.id: job for job in change.jobs(states=ACTIVE_STATES | {"queued"}, node=self.node)}
            if self._watched() - {job.id for job in jobs.values() if job.state in ACTIVE_STATES}:
                self._hurry()  # somebody else ended one just now: before its devices are given on, its processes end
                return
            leases = self._living(change, jobs, change.leases(self.node))
            if not any(job.state == "queued" or job.resources.is_elastic for job in jobs.values()):
                return
            if problem is not None:
                change.tell_waits({job.id: problem for job in jobs.values() if job.state == "queued"})
                return
            inventory = self._leftovers.without_theirs(_with_ours(inventory, leases))
            usage = change.usage(self.node, now, policy.fair_share_hours)
            decision = decide(tuple(jobs.values()), leases, inventory, now, policy, usage)
            for start in decision.starts:
                job = handle(jobs[start.job_id], Granted(tuple(start.devices), now)).job
                begun.append(change.save(replace(job, result={})))
                change.grant(job, tuple(start.devices), now, policy.lease_s)
            for stop in decision.stops:
                job = handle(jobs[stop.job_id], Asked(stop.why, now)).job
                if job != jobs[stop.job_id]:
                    stopped.append(change.save(job))
            change.tell_waits(decision.waits)
        for job in begun:
            self._guarded(job, self._begin, now)
        for job in stopped:
            self._guarded(job, self._stop, now)

    def _living(self, change: Change, jobs: dict[str, Job], leases: Iterable[Lease]) -> tuple[Lease, ...]:
        """The leases of jobs that are active; others, which nobody should have left, are given back."""
        leases = tuple(leases)
        dead = {lease.job_id for lease in leases if lease.job_id not in jobs or jobs[lease.job_id].state == "queued"}
        for job_id in dead:
            change.release(job_id)
        return tuple(lease for lease in leases if lease.job_id not in dead)

    def _begin(self, job: Job, now: float) -> bool:
        self._executor.start(job)
        return True

    def _stop(self, job: Job, now: float) -> bool:
        self._executor.ask_to_stop(job)
        return True

    def _tell_progress(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job.state in ("running", "stopping"):
                self._guarded(job, self._tell_progress_of, 0.0)

    def _tell_progress_of(self, job: Job, _: float) -> bool:
        found = progress_of(self._watch(job).look())
        found |= {name: job.progress[name] for name in (SPENT_BEFORE, DEVICE_SECONDS) if name in job.progress}
        if found != job.progress:
            self._store.jobs.tell_progress(job.id, job.attempt, found)
        return False

    def _stop_all(self) -> None:
        """Have every job saved and queued again; those that take longer than their grace are killed."""
        self._may_start = False
        limit = self._steady() + self._config.scheduling.stop_grace_s + _STOP_MARGIN_S
        while (jobs := self._store.jobs.active(self.node)) and self._steady() < limit:
            for job in jobs:
                if job.state != "stopping":
                    self._guarded(
                        job,
                        lambda job, now: self._apply(job, Asked("preempt", now, "the service's end")),
                        self._clock(),
                    )
            self.tick()
            time.sleep(TICK_S / 5)


def _with_ours(inventory: Inventory, leases: tuple[Lease, ...]) -> Inventory:
    """Devices of our jobs are not taken: in a container the driver does not say whose processes compute on them."""
    held = {lease.device for lease in leases}
    devices = (
        replace(device, unusable=None) if device.id in held and (device.unusable or "").startswith("taken") else device
        for device in inventory.devices
    )
    return replace(inventory, devices=tuple(devices))
