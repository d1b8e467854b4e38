"""Which queued job starts now and on which devices, and which running one makes room. Pure: no clock, no effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from drumline.config.service import SchedulingConfig
from drumline.jobs import waiting
from drumline.jobs.backfill import spare
from drumline.jobs.elastic import extend, growing
from drumline.jobs.fleet import Fleet
from drumline.jobs.placement import suits
from drumline.jobs.preemption import make_room
from drumline.jobs.priorities import in_order, shares
from drumline.jobs.records import Device, Inventory, Job, Lease


@dataclass(frozen=True)
class Start:
    """Give these devices to this job and start it."""

    job_id: str
    devices: tuple[str, ...]


@dataclass(frozen=True)
class StopFor:
    """Ask this job to save and stop, so that it goes on later, or with another number of devices."""

    job_id: str
    why: Literal["preempt", "resize"]
    devices_after: int | None = None
    """resize: devices with which it is expected to go on. How many it gets is decided when it starts again."""


@dataclass(frozen=True)
class Decision:
    """What to do now. No job is named twice."""

    starts: tuple[Start, ...] = ()
    stops: tuple[StopFor, ...] = ()
    waits: Mapping[str, str] = field(default_factory=dict)
    """Queued job that does not start -> why, for people."""


def decide(
    jobs: Sequence[Job],
    leases: Sequence[Lease],
    inventory: Inventory,
    now: float,
    policy: SchedulingConfig,
    usage: Mapping[str, float],
) -> Decision:
    """What to start and to stop, from the jobs of one machine that have not ended.

    `usage`: owner -> device-seconds, those long ago counting less. The same jobs and leases give the same decision, in
    whatever order they come.
    """
    turn = _Turn(Fleet(jobs, leases, inventory, now=now, least_run_s=policy.least_run_s), now, policy)
    queued = [job for job in jobs if job.state == "queued"]
    for job in in_order(queued, shares(jobs, usage), now, policy.ageing_s):
        turn.look_at(job)
    turn.extend()
    return turn.decision()


class _Turn:
    """One decision in the making: jobs are looked at one after the other, the most important first."""

    def __init__(self, fleet: Fleet, now: float, policy: SchedulingConfig) -> None:
        self._fleet = fleet
        self._now = now
        self._policy = policy
        self._starting: dict[str, list[Device]] = {}
        self._elastic: list[Job] = []
        self._stops: list[StopFor] = []
        self._waits: dict[str, str] = {}
        self._named: list[Job] = []
        """Jobs that wait for devices which they name."""
        self._first: Job | None = None
        """The job that has to wait and for which free devices are kept; those after it only get what it can spare."""
        self._said: dict[tuple[int, int | None, tuple[str, ...]], str] = {}
        self._one_waits = False
        """Whether a job waits that could run if others did not."""

    def look_at(self, job: Job) -> None:
        """Start it, or say why it waits."""
        asked = job.resources
        free = self._fleet.free.count(asked)
        if free >= asked.least:
            self._start(job, free)
            return
        if asked.gpus:
            self._named.append(job)
        if (said := self._said.get((asked.least, asked.memory_bytes, asked.gpus))) is not None:
            self._waits[job.id] = said
        else:
            self._waits[job.id] = self._look_at_one_that_waits(job, free)

    def _look_at_one_that_waits(self, job: Job, free: int) -> str:
        """Make room for it, or keep what is free, if it is the first; why it waits."""
        fleet, asked, least = self._fleet, job.resources, job.resources.least
        if fleet.machine.count(asked) < least:
            why = waiting.too_large(job, fleet)
        elif fleet.usable.count(asked) < least:
            # Nothing is kept for it: when the others can be used again is not known, and all would wait with it.
            why = waiting.unusable(job, fleet)
        else:
            self._one_waits = True
            if self._first is None and (free + fleet.coming.count(asked) >= least or self._room_is_made(job)):
                fleet.claim(job)
                return waiting.stopping(job, fleet)
            if self._first is None:
                return self._keep_for(job, free)
            why = waiting.behind(job, fleet)
        # Thousands may wait for the same, and for the same reason.
        self._said[least, asked.memory_bytes, asked.gpus] = why
        return why

    def extend(self) -> None:
        """Give what is left over to elastic jobs; a device that one of them had first may be another job's only one."""
        extend(self._starting, self._elastic, self._fleet.free)
        for job in self._named:
            if self._fleet.free.count(job.resources) >= job.resources.least:
                self._starting[job.id] = self._fleet.take(job, job.resources.least)
                del self._waits[job.id]

    def decision(self) -> Decision:
        """What was decided."""
        if not self._one_waits:
            for job, devices in growing(self._fleet, self._policy.least_run_s):
                self._stops.append(StopFor(job.id, "resize", devices))
        starts = (Start(name, tuple(device.id for device in devices)) for name, devices in self._starting.items())
        return Decision(tuple(starts), tuple(self._stops), self._waits)

    def _start(self, job: Job, free: int) -> None:
        """With as many devices as it asks for; an elastic one gets more at the end, when all have been looked at."""
        count = free if job.resources.most is None and not job.resources.is_elastic else job.resources.least
        self._starting[job.id] = self._fleet.take(job, count)
        if job.resources.is_elastic:
            self._elastic.append(job)

    def _room_is_made(self, job: Job) -> bool:
        leavers = make_room(job, self._fleet, self._now, self._policy)
        for leaver in leavers:
            why: Literal["preempt", "resize"] = "preempt" if leaver.keeps is None else "resize"
            self._stops.append(StopFor(leaver.job.id, why, leaver.keeps))
            self._fleet.leave(leaver.job, comes_back=leaver.keeps is not None)
        return bool(leavers)

    def _keep_for(self, job: Job, free: int) -> str:
        """Keep what is free for it, but for what it can spare whichever job ends next; why it waits."""
        fleet, asked, least = self._fleet, job.resources, job.resources.least
        self._first = job
        held = [sum(suits(device, asked) for device in devices) for devices in fleet.held.values()]
        spared = min(free, spare(least, free + fleet.coming.count(asked), held))
        fleet.free.take(free - spared, asked)
        fleet.coming.take(fleet.coming.count(asked), asked)
        return waiting.first(job, free, fleet)
