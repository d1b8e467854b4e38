"""What holds of every decision of the scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from drumline.config.service import SchedulingConfig
from drumline.jobs.placement import Pool, suits
from drumline.jobs.priorities import goes_before, step_of
from drumline.jobs.records import Inventory, Job, Lease
from drumline.jobs.scheduler import Decision, Start, StopFor


class Checked:
    """A decision beside what it was made of."""

    def __init__(
        self,
        decision: Decision,
        jobs: Sequence[Job],
        leases: Sequence[Lease],
        inventory: Inventory,
        policy: SchedulingConfig,
    ) -> None:
        self.decision, self.policy, self.now = decision, policy, inventory.time
        self.jobs = {job.id: job for job in jobs}
        usable = {device.id: device for device in inventory.devices if device.unusable is None}
        held = {lease.device for lease in leases}
        self.usable = Pool(usable.values())
        self.free = {name: device for name, device in usable.items() if name not in held}
        started = {start.job_id for start in decision.starts}
        self.waiting = [job for job in jobs if job.state == "queued" and job.id not in started]
        self.could_run = [job for job in self.waiting if self.fits(job, self.usable)]

    def check(self) -> None:
        """Raises AssertionError with what does not hold."""
        given = [device for start in self.decision.starts for device in start.devices]
        assert len(given) == len(set(given)), "a device is given twice"
        assert set(given) <= set(self.free), "a device is given that is held or cannot be used"
        for start in self.decision.starts:
            self.check_start(start)
        assert set(self.decision.waits) == {job.id for job in self.waiting} and all(self.decision.waits.values())
        assert len({stop.job_id for stop in self.decision.stops}) == len(self.decision.stops)
        for stop in self.decision.stops:
            self.check_stop(stop)
        if self.could_run:
            self.check_priorities()

    def check_start(self, start: Start) -> None:
        """All of its devices or none, and such as it asks for."""
        asked = self.jobs[start.job_id].resources
        assert asked.least <= len(start.devices) <= (asked.most or len(self.free)), "not the number that it asks for"
        assert all(suits(self.free[device], asked) for device in start.devices)

    def check_stop(self, stop: StopFor) -> None:
        """Only what has run for a while, only for somebody more important or within its bounds."""
        job, after = self.jobs[stop.job_id], stop.devices_after
        assert job.state == "running" and job.attempt_began is not None
        least_s = self.policy.least_run_s * min(job.attempt, 10)
        assert self.now - job.attempt_began >= least_s, "stopped too early"
        if stop.why == "preempt":
            assert self.policy.preempt and job.resources.preemptible and after is None
            assert any(
                other.resources.priority > job.resources.priority
                and goes_before(other, job, self.now, self.policy.ageing_s)
                for other in self.could_run
            ), "preempted for nobody of higher priority"
        else:
            assert job.resources.is_elastic and after is not None and after != len(job.devices)
            assert job.resources.least <= after <= (job.resources.most or after), "beyond its bounds"
            assert bool(self.could_run) == (after < len(job.devices)), "shrinks for nobody, or grows while others wait"

    def check_priorities(self) -> None:
        """Of the most important jobs that wait, one at least did not fit into what those before it left."""
        top = max(self.step(job) for job in self.could_run)
        taken = {
            device
            for start in self.decision.starts
            if self.step(self.jobs[start.job_id]) >= top
            for device in start.devices
        }
        left = Pool(device for name, device in self.free.items() if name not in taken)
        first = [job for job in self.could_run if self.step(job) == top]
        assert not all(self.fits(job, left) for job in first), f"{[job.id for job in first]} are passed over"

    def step(self, job: Job) -> float:
        """Its effective priority."""
        return step_of(job, self.now, self.policy.ageing_s)

    @staticmethod
    def fits(job: Job, devices: Pool) -> bool:
        """Whether so many of these devices suit it."""
        return devices.count(job.resources) >= job.resources.least
