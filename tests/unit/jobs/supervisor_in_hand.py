"""A supervisor with its clocks in the hand of a test, and an executor that tells what it is told to tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from drumline.config.service import SchedulingConfig, ServiceConfig
from drumline.jobs.devices import slots
from drumline.jobs.events import Began, Event, Started
from drumline.jobs.executor import Executor
from drumline.jobs.records import Inventory, Job, Resources, Work
from drumline.jobs.store import Store
from drumline.jobs.supervisor import Supervisor
from tests.fresh_store import fresh_store

NODE = "here"


class Told(Executor):
    """An executor that starts nothing, and tells what it is told to tell."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.started: list[tuple[str, int]] = []
        self.asked: list[str] = []
        self.killed: list[str] = []
        self.events: dict[str, Callable[[Job], Event | None]] = {}
        self.trouble: str | None = None

    def start(self, job: Job) -> None:
        self.started.append((job.id, job.attempt))

    def ask_to_stop(self, job: Job) -> None:
        self.asked.append(job.id)

    def kill(self, job: Job) -> None:
        self.killed.append(job.id)

    def look(self, job: Job) -> Event | None:
        return self.events[job.id](job) if job.id in self.events else None

    def problem(self) -> str | None:
        return self.trouble


class Service:
    """A supervisor with its clock in hand."""

    def __init__(self, folder: Path, node: str = NODE, store: Store | None = None) -> None:
        """store: of another machine, where they share one."""
        scheduling = SchedulingConfig(least_run_s=0.0, stop_grace_s=10.0, lease_s=30.0)
        self.config = ServiceConfig(data_dir=folder, node=node, scheduling=scheduling)
        self.node = node
        self.store: Store = fresh_store(folder) if store is None else store
        self.executor = Told(folder)
        self.set = 1000.0
        """What the clock said when the machine was started; it may be set."""
        self.uptime = 0.0
        self.num_slots = 4
        self.seen = True
        self.taken: dict[int, str] = {}
        """Slots that look like somebody else's, with the reason."""
        self.begin()

    def begin(self) -> None:
        """Another supervisor, which knows nothing but what is in store and files."""
        self.supervisor = Supervisor(
            self.store, self.executor, self._inventory, self.config, lambda: self.now, *2 * (lambda: self.uptime,)
        )

    @property
    def now(self) -> float:
        """By the clock."""
        return self.set + self.uptime

    def _inventory(self) -> Inventory:
        found = slots(self.num_slots)
        devices = (replace(each, unusable=self.taken.get(number)) for number, each in enumerate(found))
        return Inventory(self.node, self.now if self.seen else 0.0, tuple(devices))

    def add(self, name: str, **resources: Any) -> None:
        work = Work("train", {})
        job = Job(name, "ann", work, Resources(**{"devices": 1, **resources}), self.now, node=self.node)
        self.store.jobs.add(replace(job, queued_since=self.now))

    def get(self, name: str) -> Job:
        job = self.store.jobs.get(name)
        assert job is not None
        return job

    def tick(self, seconds: float = 1.0) -> None:
        self.uptime += seconds
        self.supervisor.tick()

    def running(self, *names: str) -> None:
        """Bring these jobs to where they run."""
        for name in names:
            self.executor.events[name] = lambda job: (
                Started(7, self.uptime, self.now)
                if job.pid is None
                else Began(self.now)
                if job.state == "starting"
                else None
            )
        for _ in range(3):
            self.tick()
        assert [self.get(name).state for name in names] == ["running"] * len(names)


def unreadable(job: Job) -> Event:
    """Tells nothing."""
    raise PermissionError(13, "Permission denied", "/data/jobs/a")
