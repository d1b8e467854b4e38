"""The loop around jobs: one job's trouble stays its own, and nothing is believed that is not so any more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from drumline.errors import StoreError
from drumline.jobs import supervisor as module
from drumline.jobs.events import Asked, End, Ended, Event
from drumline.jobs.records import Job
from drumline.jobs.states import handle
from tests.unit.jobs.supervisor_in_hand import NODE, Service, unreadable


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(module, "SCHEDULE_SHARE", 0.0)  # however slow the machine is that tests
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
        service.uptime += 1.0
        time.sleep(0.01)
    service.supervisor.close()
    assert (fails, service.get("a").state) == ([0], "starting")


def test_a_service_says_that_it_lives_and_that_it_ends(service: Service) -> None:
    service.tick()
    assert [beat.service_id for beat in service.store.services.alive(NODE)] == [service.supervisor.id]
    service.supervisor.close()
    assert service.store.services.alive(NODE) == ()
