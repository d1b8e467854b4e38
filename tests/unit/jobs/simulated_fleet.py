"""A machine in simulated time: jobs arrive, run and end as the scheduler decides; devices fail and are repaired.

What a job becomes is decided by the real state machine. Every decision is checked against what must hold of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from drumline.config.service import SchedulingConfig
from drumline.jobs.records import Device, Inventory, Job, Lease, Resources, Work
from drumline.jobs.scheduler import Decision, decide
from drumline.jobs.states import INTERRUPTED, Asked, Began, End, Ended, Granted, handle
from tests.unit.jobs.decision_checks import Checked

WORK = Work("train", {})
BEGIN = 1_800_000_000.0
GIB = 2**30


def machine(count: int, group: int = 8, memory: Mapping[int, int] | None = None) -> tuple[Device, ...]:
    """Devices GPU-000 and so on; `memory`: GiB by number."""
    sizes = memory or {}
    return tuple(
        Device(f"GPU-{number:03}", sizes.get(number, 80) * GIB, group=number // group) for number in range(count)
    )


def queued(name: str, resources: Resources, at: float = 0.0, owner: str = "ada") -> Job:
    """A job that came at this second of the simulation."""
    return Job(name, owner, WORK, resources, BEGIN + at, queued_since=BEGIN + at)


@dataclass
class SimulatedFleet:
    """Jobs on a machine. `work`: by job, device-seconds until it is done; it is done in that time by half with half."""

    devices: tuple[Device, ...]
    policy: SchedulingConfig = field(default_factory=SchedulingConfig)
    stop_s: float = 20.0
    """How long a job takes to save and end."""
    now: float = BEGIN
    jobs: dict[str, Job] = field(default_factory=dict)
    """Those that have not ended."""
    later: list[Job] = field(default_factory=list)
    """Those that have not come yet."""
    work: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    stops: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(job, why) -> how often."""
    devices_change: bool = False
    """A job that others gave way to may then not start after all."""
    unusable: dict[str, str] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    gave_way: dict[str, int] = field(default_factory=dict)
    """Preempted job that waits -> how many of higher priority started since."""
    usage: dict[str, float] = field(default_factory=dict)
    """Owner -> device-seconds up to now, halved for every policy.fair_share_hours that they are ago."""

    def add(self, jobs: Iterable[tuple[Job, float]]) -> None:
        """Jobs with the seconds that each runs on as many devices as it must have; each comes at its queued_since."""
        for job, seconds in jobs:
            self.later.append(job)
            self.work[job.id] = seconds * job.resources.least

    def leases(self) -> list[Lease]:
        """What is held."""
        return [
            Lease(device, "node", job.id, self.now, self.now + 30)
            for job in self.jobs.values()
            for device in job.devices
        ]

    def inventory(self) -> Inventory:
        """The machine as it now is."""
        devices = tuple(replace(device, unusable=self.unusable.get(device.id)) for device in self.devices)
        return Inventory("node", self.now, devices, has_gpus=True)

    def advance(self, seconds: float) -> None:
        """Let time go by: work is done, and jobs that are through or asked to stop end."""
        self._use(seconds)
        self.now += seconds
        for job in list(self.jobs.values()):
            if job.state in ("starting", "running"):
                self.work[job.id] -= seconds * len(job.devices)
                job = handle(job, Began(self.now)).job
                if self.work[job.id] <= 0:
                    self._end(job, 0)
                else:
                    self.jobs[job.id] = job
            elif job.stop_asked is not None and self.now >= job.stop_asked + self.stop_s:
                self._end(job, INTERRUPTED)

    def decide(self) -> Decision:
        """One decision, checked and carried out."""
        self.jobs |= {job.id: job for job in self.later if job.queued_since <= self.now}
        self.later = [job for job in self.later if job.queued_since > self.now]
        inventory, leases, jobs = self.inventory(), self.leases(), list(self.jobs.values())
        decision = decide(jobs, leases, inventory, self.now, self.policy, self.usage)
        Checked(decision, jobs, leases, inventory, self.policy).check()
        for start in decision.starts:
            job = self.jobs[start.job_id] = handle(self.jobs[start.job_id], Granted(start.devices, self.now)).job
            self.started.setdefault(job.id, self.now)
            gave_way = self.gave_way.pop(job.id, 1) or self.devices_change
            assert gave_way, f"{job.id} was preempted, and has its devices back"
            for name in self.gave_way:
                self.gave_way[name] += job.resources.priority > self.jobs[name].resources.priority
        for stop in decision.stops:
            self.jobs[stop.job_id] = handle(self.jobs[stop.job_id], Asked(stop.why, self.now)).job
            self.stops[stop.job_id, stop.why] += 1
            if stop.why == "preempt":
                self.gave_way[stop.job_id] = 0
        self.decisions.append(decision)
        return decision

    def run(self, seconds: float, tick: float) -> None:
        """A decision each tick, until the time is over or nothing runs any more and nothing starts."""
        end = self.now + seconds
        self.decide()
        while self.now < end and (self.later or any(job.state != "queued" for job in self.jobs.values())):
            self.advance(tick)
            self.decide()

    def _use(self, seconds: float) -> None:
        """Count what is held for this long; the little that is forgotten meanwhile is none of it."""
        kept = 0.5 ** (seconds / (3600.0 * self.policy.fair_share_hours))
        self.usage = {owner: used * kept for owner, used in self.usage.items()}
        for job in self.jobs.values():
            self.usage[job.owner] = self.usage.get(job.owner, 0.0) + seconds * len(job.devices) * (
                job.state != "queued"
            )

    def _end(self, job: Job, exit_status: int) -> None:
        job = handle(job, Ended(End(exit_status), self.now)).job
        self.jobs[job.id] = job
        if job.has_ended:
            self.ended[job.id] = self.now
            self.gave_way.pop(job.id, None)
            del self.jobs[job.id]
