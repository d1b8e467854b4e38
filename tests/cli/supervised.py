"""A service without threads and HTTP, for tests that tick it by hand: real store, keepers and processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from drumline.config.service import SchedulingConfig, ServiceConfig
from drumline.jobs.adoption import end_marked, mark_of, marked
from drumline.jobs.devices import slots
from drumline.jobs.executor import Commands, Executor
from drumline.jobs.keeper_files import AttemptFiles
from drumline.jobs.records import ACTIVE_STATES, Inventory, Job, Resources, Work
from drumline.jobs.states import Asked, Stop, handle
from drumline.jobs.store import JobFilter, open_store, store_url
from drumline.jobs.supervisor import Supervisor
from tests.cli.simulated_job import simulated_commands

NODE = "here"
LIMIT_S = 30.0


class Supervised:
    """A data directory, its store, and a supervisor that may be replaced as if it had been killed."""

    def __init__(
        self, folder: Path, num_slots: int = 2, commands: Commands | None = simulated_commands, **policy: Any
    ) -> None:
        self.folder = folder
        self.num_slots = num_slots
        self.commands = commands
        scheduling = SchedulingConfig(**{"least_run_s": 0.0, "stop_grace_s": 20.0, **policy})
        self.config = ServiceConfig(data_dir=folder, node=NODE, scheduling=scheduling)
        self.store = open_store(store_url(self.config))
        self.children = {child.pid for child in psutil.Process().children()}
        self.begin()

    def begin(self) -> None:
        """Another supervisor, which knows nothing but what is in store and files."""
        self.executor = Executor(self.folder, commands=self.commands)
        self.supervisor = Supervisor(self.store, self.executor, self._inventory, self.config)

    def _inventory(self) -> Inventory:
        return Inventory(NODE, time.time(), slots(self.num_slots))

    def add(self, name: str, does: str = "quick", devices: int = 1, **values: Any) -> Job:
        """Queue a job that does so; values: of Resources, or steps, pace_s, export, and all settings of a real run."""
        simulated = {"does": does} | {key: values.pop(key) for key in ("steps", "pace_s") if key in values}
        settings = values.pop("settings", simulated)
        work = Work("train", settings, export=values.pop("export", False))
        resources = Resources(**({} if "min_devices" in values else {"devices": devices}) | values)
        now = time.time()
        job, _ = self.store.jobs.add(Job(name, "ann", work, resources, now, node=NODE, queued_since=now))
        return job

    def get(self, name: str) -> Job:
        """A job as it is."""
        job = self.store.jobs.get(name)
        assert job is not None
        return job

    def ask(self, name: str, stop: Stop) -> None:
        """Ask a job to stop, as a request does."""
        self.store.jobs.update(name, lambda job: handle(job, Asked(stop, time.time(), "a test")).job)

    def until(self, name: str, fits: Callable[[Job], bool], limit_s: float = LIMIT_S) -> Job:
        """Tick until a job is as it should be."""
        limit = time.monotonic() + limit_s
        while not fits(job := self.get(name)):
            if time.monotonic() > limit:
                raise AssertionError(f"not so within {limit_s:g} s: {job}")
            self.supervisor.wake()
            self.supervisor.tick()
            time.sleep(0.02)
        return job

    def until_it_works(self, name: str, limit_s: float = LIMIT_S) -> Job:
        """Tick until a job's command has written a line."""
        metrics = self.executor.folder(name) / "run/metrics.jsonl"
        return self.until(
            name, lambda job: job.state == "running" and metrics.exists() and metrics.stat().st_size > 0, limit_s
        )

    def until_ended(self, name: str, limit_s: float = LIMIT_S) -> Job:
        """Tick until a job has ended."""
        return self.until(name, lambda job: job.has_ended, limit_s)

    def processes(self, job: Job) -> list[int]:
        """Living processes of a job's present attempt."""
        return marked(mark_of(job.id, job.attempt))

    def files(self, job: Job) -> AttemptFiles:
        """Of a job's present attempt."""
        return AttemptFiles(self.executor.folder(job.id), job.attempt)

    def close(self) -> None:
        """End all of it."""
        self.supervisor.close()
        for job in self.store.jobs.find(JobFilter(states=ACTIVE_STATES), limit=100).items:
            end_marked(mark_of(job.id, job.attempt))
        self.store.close()
        for child in psutil.Process().children():  # keepers of supervisors that have let go of them
            if child.pid not in self.children:
                child.wait(20)
