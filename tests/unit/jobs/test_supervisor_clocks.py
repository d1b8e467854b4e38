"""What a supervisor does when, whatever the clock is set to, and what it keeps in mind and reads for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drumline.config.service import ServiceConfig
from drumline.jobs import results
from drumline.jobs import supervisor as module
from drumline.jobs.events import Asked, End, Ended
from drumline.jobs.records import Inventory, Job
from drumline.jobs.states import handle
from drumline.jobs.supervisor import Supervisor
from drumline.monitor.runs import RunWatch
from tests.unit.jobs.supervisor_in_hand import NODE, Service, unreadable


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(module, "SCHEDULE_SHARE", 0.0)  # however slow the machine is that tests
    service = Service(tmp_path)
    yield service
    service.supervisor.close()
    service.store.close()


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
    service.set -= 3600.0
    service.add("b")
    service.tick()
    assert service.get("b").state == "starting"


def test_a_clock_that_is_set_ends_no_job_and_starts_none_again(service: Service) -> None:
    service.add("waits")
    service.add("runs", time_limit_s=100)
    service.add("stops")
    service.running("runs", "stops")
    assert service.executor.started == [("runs", 1), ("stops", 1), ("waits", 1)]
    service.store.jobs.update("stops", lambda job: handle(job, Asked("preempt", service.now)).job)
    service.tick(0.1)
    service.set += 86400.0
    service.tick(0.1)
    assert [service.get(name).state for name in ("waits", "runs", "stops")] == ["starting", "running", "stopping"]
    assert (service.executor.killed, len(service.executor.started)) == ([], 3)
    service.executor.events["runs"] = lambda job: Ended(End(3), service.now, 1)
    service.num_slots = 0
    service.tick(0.1)
    job = service.get("runs")
    assert (job.state, job.interruptions) == ("queued", 1)
    assert job.used_s == pytest.approx(1.3)
    uses = service.store.jobs.usage(0.0, service.now)
    assert sum(use.device_s for use in uses) == pytest.approx(job.used_s)
    service.tick(10.0)
    assert service.executor.killed == ["stops"]


def test_the_time_limit_is_counted_since_the_start_of_the_machine(service: Service) -> None:
    service.add("a", time_limit_s=100)
    service.running("a")
    service.set -= 86400.0
    service.tick(101.0)
    assert (service.get("a").state, service.get("a").stop) == ("stopping", "time_limit")


def test_nothing_is_kept_in_mind_of_what_another_service_saw_end(service: Service) -> None:
    service.add("a")
    service.running("a")
    service.executor.events["a"] = unreadable
    service.tick()
    service.store.jobs.update("a", lambda job: handle(job, Asked("preempt", service.now)).job)
    del service.executor.events["a"]
    service.tick()
    service.tick()
    assert service.executor.asked == ["a"]
    kept = vars(service.supervisor)
    minds = [kept[name] for name in ("_watches", "_asked", "_since", "_troubles")]
    service.store.jobs.update("a", lambda job: handle(job, Ended(End(0), service.now, 1)).job)
    assert [len(mind) for mind in minds[:3]] == [1, 1, 1]
    told: list[object] = []
    service.executor.keep_only = told.append  # type: ignore[method-assign, assignment]
    service.tick()
    assert [kept[name] for name in ("_watches", "_asked", "_since", "_troubles")] == [{}] * 4
    assert told == [set()]


def test_a_look_that_changes_nothing_takes_no_lock_and_no_disk_is_waited_for_in_one(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, taken = service.store.change, [0]

    def counted() -> object:
        taken[0] += 1
        return change()

    def problem() -> None:
        with change():  # raises within a change
            pass

    monkeypatch.setattr(service.store, "change", counted)
    monkeypatch.setattr(service.executor, "problem", problem)
    service.add("a")
    service.running("a")
    taken[0] = 0
    service.tick(0.1)
    assert taken == [0]


def test_a_long_queue_has_its_pause_whatever_happens(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.add("a")
    service.running("a")
    monkeypatch.setattr(module, "SCHEDULE_SHARE", 1e9)
    service.tick()
    service.add("b")
    service.supervisor.wake()
    service.executor.events["a"] = lambda job: Ended(End(0), service.now, 1)
    service.tick()
    service.tick()
    assert (service.get("a").state, service.get("b").state) == ("succeeded", "queued")
    monkeypatch.setattr(module, "SCHEDULE_SHARE", 0.0)
    service.tick(1e9)
    assert service.get("b").state == "starting"
    service.add("c")
    service.supervisor.wake()
    service.tick(0.0)
    assert service.get("c").state == "starting"


def test_an_end_goes_on_with_what_was_read_already(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    watches = []

    def watch(job: Job, folder: Path, clock: Callable[[], float]) -> RunWatch:
        watches.append(RunWatch(folder / "run", clock))
        return watches[-1]

    monkeypatch.setattr(module, "watch_of", watch)
    monkeypatch.setattr(results, "watch_of", None)
    service.add("a")
    metrics = service.executor.folder("a") / "run/metrics.jsonl"
    metrics.parent.mkdir(parents=True)
    metrics.write_text('{"kind": "train", "step": 1, "loss": 2.0}\n')
    service.running("a")
    service.tick()
    assert service.get("a").progress["step"] == 1
    with metrics.open("a") as file:
        file.write('{"kind": "train", "step": 2, "loss": 1.5}\n')
    service.executor.events["a"] = lambda job: Ended(End(0), service.now, 1)
    service.tick()
    job = service.get("a")
    assert (job.progress["step"], job.result["steps"], job.result["best_loss"]) == (2, 2, 1.5)
    assert len(watches) == 1
