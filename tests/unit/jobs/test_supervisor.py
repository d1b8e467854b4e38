"""The loop around jobs: one job's trouble stays its own, and nothing is believed that is not so any more."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drumline.config.service import SchedulingConfig, ServiceConfig
from drumline.errors import StoreError
from drumline.jobs import supervisor as module
from drumline.jobs.devices import slots
from drumline.jobs.events import Asked, Began, End, Ended, Event, Started
from drumline.jobs.executor import Executor
from drumline.jobs.records import Inventory, Job, Resources, Work
from drumline.jobs.states import handle
from drumline.jobs.store import Store, open_store, store_url
from drumline.jobs.supervisor import Supervisor

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

    def __init__(self, folder: Path) -> None:
        scheduling = SchedulingConfig(least_run_s=0.0, stop_grace_s=10.0, lease_s=30.0)
        config = ServiceConfig(data_dir=folder, node=NODE, scheduling=scheduling)
        self.store: Store = open_store(store_url(config))
        self.executor = Told(folder)
        self.now = 1000.0
        self.num_slots = 4
        self.seen = True
        self.taken: dict[int, str] = {}
        """Slots that look like somebody else's, with the reason."""
        self.supervisor = Supervisor(self.store, self.executor, self._inventory, config, lambda: self.now)

    def _inventory(self) -> Inventory:
        found = slots(self.num_slots)
        devices = (replace(each, unusable=self.taken.get(number)) for number, each in enumerate(found))
        return Inventory(NODE, self.now if self.seen else 0.0, tuple(devices))

    def add(self, name: str, **resources: Any) -> None:
        work = Work("train", {})
        job = Job(name, "ann", work, Resources(**{"devices": 1, **resources}), self.now, node=NODE)
        self.store.jobs.add(replace(job, queued_since=self.now))

    def get(self, name: str) -> Job:
        job = self.store.jobs.get(name)
        assert job is not None
        return job

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.supervisor.tick()

    def running(self, *names: str) -> None:
        """Bring these jobs to where they run."""
        for name in names:
            self.executor.events[name] = lambda job: (
                Started(7, 1.0, self.now) if job.pid is None else Began(self.now) if job.state == "starting" else None
            )
        for _ in range(3):
            self.tick()
        assert [self.get(name).state for name in names] == ["running"] * len(names)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store: making one takes longer than any of these tests."""
    path = tmp_path_factory.mktemp("store") / "store.sqlite3"
    open_store(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def service(tmp_path: Path, template: Path) -> Iterator[Service]:
    shutil.copy(template, tmp_path)
    service = Service(tmp_path)
    yield service
    service.supervisor.close()
    service.store.close()


def test_a_job_that_makes_trouble_stops_no_other_and_says_so(service: Service) -> None:
    def trouble(job: Job) -> Event:
        raise ValueError("nobody knows why")

    service.add("bad")
    service.add("good")
    service.running("bad", "good")
    service.executor.events["bad"] = trouble
    service.executor.events["good"] = lambda job: Ended(End(0), service.now, 1)
    service.tick()
    assert service.get("good").state == "succeeded"
    assert service.get("bad").state == "running"
    assert service.get("bad").message == "it cannot be looked after: ValueError: nobody knows why"
    service.executor.events.pop("bad")
    service.tick()
    assert service.get("bad").message == ""


def test_an_unreadable_folder_is_said_and_the_job_goes_on(service: Service) -> None:
    def unreadable(job: Job) -> Event:
        raise PermissionError(13, "Permission denied", "/data/jobs/a")

    service.add("a")
    service.running("a")
    service.executor.events["a"] = unreadable
    service.tick()
    assert service.get("a").message.startswith("its folder cannot be read: [Errno 13] Permission denied")


def test_what_is_told_of_an_earlier_attempt_changes_nothing(service: Service) -> None:
    service.add("a")
    service.running("a")

    def late(job: Job) -> Event:
        # Meanwhile another service has seen the same end, and has started the job again.
        service.store.jobs.update("a", lambda found: replace(found, attempt=2, pid=None, state="starting"))
        return Ended(End(1), service.now, job.attempt)

    service.executor.events["a"] = late
    service.tick()
    assert (service.get("a").state, service.get("a").attempt) == ("starting", 2)


def test_an_end_whose_files_cannot_be_read_is_one(service: Service) -> None:
    service.add("a")
    service.running("a")
    folder = service.executor.folder("a")
    (folder / "run").mkdir(parents=True)
    (folder / "run/metrics.jsonl").mkdir()
    service.executor.events["a"] = lambda job: Ended(End(0), service.now, 1)
    service.tick()
    job = service.get("a")
    assert (job.state, job.result["success"]) == ("succeeded", True)
    assert "metrics.jsonl" in job.result["problem"]
    assert service.store.leases.all() == ()


def test_one_that_is_cancelled_while_it_waits_to_go_on_keeps_what_it_came_to(service: Service) -> None:
    service.add("a")
    service.running("a")
    service.num_slots = 0
    service.executor.events["a"] = lambda job: Ended(End(3), service.now, 1)
    service.tick(100.0)
    assert (service.get("a").state, service.get("a").reason) == ("queued", "interrupted")
    service.store.jobs.update("a", lambda job: handle(job, Asked("cancel", service.now)).job)
    job = service.get("a")
    assert (job.state, job.result["success"]) == ("cancelled", False)
    assert job.result["usage"]["device_seconds"] == job.used_s > 100.0


def test_leases_of_nobody_are_given_back(service: Service) -> None:
    service.add("a", devices=4)
    service.running("a")
    # As if its end had been kept without its leases' end.
    service.store.jobs.update("a", lambda job: replace(job, state="failed"))
    service.add("b", devices=4)
    service.tick()
    assert service.get("b").state == "starting"
    assert {lease.job_id for lease in service.store.leases.all()} == {"b"}


def test_leases_are_renewed_while_a_job_is_looked_after(service: Service) -> None:
    service.add("a")
    service.running("a")
    for _ in range(20):
        service.tick(9.0)
        assert all(lease.expires > service.now + 5 for lease in service.store.leases.all())
    assert len(service.store.leases.all()) == 1


def test_on_a_full_disk_jobs_wait_and_say_for_what(service: Service) -> None:
    service.executor.trouble = "the disk is full"
    service.add("a")
    service.tick()
    assert (service.get("a").state, service.get("a").waits_for) == ("queued", "the disk is full")
    service.executor.trouble = None
    service.tick()
    assert service.get("a").state == "starting"


def test_processes_of_our_own_jobs_are_no_strangers(service: Service) -> None:
    """A job of higher priority stops the one that has all devices, which could not be if they were somebody else's."""
    service.add("low", devices=4)
    service.running("low")
    service.taken = dict.fromkeys(range(4), "taken by python (pid 7)")
    service.add("high", devices=4, priority=1)
    service.tick()
    assert (service.get("low").state, service.get("low").stop) == ("stopping", "preempt")
    service.taken[0] = "sick: XID 79"
    service.add("higher", devices=4, priority=2)
    service.tick()
    assert "sick: XID 79" in service.get("higher").waits_for


def test_nothing_is_decided_before_the_machine_was_looked_at(service: Service) -> None:
    service.seen = False
    service.add("a")
    service.tick()
    assert (service.get("a").state, service.get("a").waits_for) == ("queued", "")


def test_a_scheduler_that_fails_keeps_nobody_from_being_looked_after(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a mistake")

    service.add("a")
    service.running("a")
    service.add("b")
    monkeypatch.setattr(module, "decide", fail)
    service.executor.events["a"] = lambda job: Ended(End(0), service.now, 1)
    service.tick()
    assert service.get("a").state == "succeeded"


def test_a_keeper_that_nobody_started_is_started_by_whoever_comes_next(service: Service) -> None:
    service.add("a")
    service.tick()
    assert service.executor.started == [("a", 1)]
    service.tick(1.0)
    assert service.executor.started == [("a", 1)]
    service.tick(module.START_AGAIN_S)
    assert service.executor.started == [("a", 1), ("a", 1)]
    config = ServiceConfig(data_dir=service.executor.jobs_dir.parent, node=NODE)
    other = Supervisor(service.store, service.executor, lambda: Inventory(NODE, 0.0), config, lambda: service.now)
    other.tick()
    assert len(service.executor.started) == 3
    other.close()


def test_a_stop_is_asked_for_until_it_is_over_and_then_enforced(service: Service) -> None:
    service.add("a", time_limit_s=100)
    service.running("a")
    service.tick(100.0)
    assert (service.get("a").state, service.get("a").stop) == ("stopping", "time_limit")
    assert service.executor.asked == ["a"]
    service.tick(2.0)
    assert service.executor.asked == ["a", "a"]
    assert service.executor.killed == []
    service.tick(10.0)
    assert service.executor.killed == ["a"]


def test_a_clock_that_is_set_back_stops_nothing(service: Service) -> None:
    service.add("a")
    service.running("a")
    service.now -= 3600.0
    service.add("b")
    service.tick()
    assert service.get("b").state == "starting"


def test_a_store_that_is_away_is_asked_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = [3]
    change = service.store.change

    def away() -> object:
        if fails[0] > 0:
            fails[0] -= 1
            raise StoreError("it is away", "bring it back")
        return change()

    monkeypatch.setattr(service.store, "change", away)
    monkeypatch.setattr(module, "TICK_S", 0.01)
    monkeypatch.setattr(module, "MOST_PAUSE_S", 0.02)
    service.add("a")
    service.supervisor.start()
    limit = time.monotonic() + 10
    while service.get("a").state != "starting" and time.monotonic() < limit:
        service.now += 1.0
        time.sleep(0.01)
    service.supervisor.close()
    assert (fails, service.get("a").state) == ([0], "starting")


def test_a_service_says_that_it_lives_and_that_it_ends(service: Service) -> None:
    service.tick()
    assert [beat.service_id for beat in service.store.services.alive(NODE)] == [service.supervisor.id]
    service.supervisor.close()
    assert service.store.services.alive(NODE) == ()
