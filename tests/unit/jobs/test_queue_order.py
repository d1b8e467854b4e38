"""The place of a job that waits: as the scheduler would look at it, whoever asks and however often."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drumline.config.service import SchedulingConfig
from drumline.jobs import queue_order
from drumline.jobs.queue_order import KEPT_S, SEEN_S, Queue
from drumline.jobs.records import Device, Inventory, Job, Resources, Work
from drumline.jobs.scheduler import decide
from drumline.jobs.store import Store, open_store


class Watched:
    """A queue over a store, a clock in hand, and how often the order was made."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.now, self.made = store, 0.0, 0
        self.queue = Queue(store, "here", SchedulingConfig(), lambda: self.now)
        read = store.unended

        def counted(*given: Any) -> Any:
            self.made += 1
            return read(*given)

        monkeypatch.setattr(store, "unended", counted)

    def add(self, job_id: str, owner: str = "ann", *, priority: int = 0, ago: float = 0.0, **values: Any) -> Job:
        now, asked = time.time(), Resources(devices=1, priority=priority)
        job = Job(job_id, owner, Work("train", {}), asked, now, node="here", queued_since=now - ago)
        job = replace(job, **values)
        self.store.jobs.add(job)
        return job


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    store = open_store(f"sqlite:///{tmp_path / 'store.sqlite3'}")
    yield Watched(store, monkeypatch)
    store.close()


def test_priority_waiting_and_fair_shares_make_the_order_and_not_the_age(watched: Watched) -> None:
    jobs = [
        watched.add("a-1", "ann", ago=30),
        watched.add("a-2", "ann", ago=20),
        watched.add("b-1", "bob", ago=10),
        watched.add("old", "cid", priority=-1, ago=2000),
        watched.add("high", "dan", priority=9),
    ]
    order = ["high", "old", "a-1", "b-1", "a-2"]
    assert [job.id for job in watched.queue.jobs()] == order
    assert watched.queue.places(jobs) == {job_id: place for place, job_id in enumerate(order, 1)}


def test_it_is_the_order_in_which_the_scheduler_starts_them(watched: Watched) -> None:
    for number in range(40):
        watched.add(f"job-{number:02}", "abcde"[number * 7 % 5], priority=number * 13 % 3, ago=number * 37 % 1900)
    watched.add("runs", "a", state="running", attempt_began=time.time() - 100, devices=("cpu:9",))
    jobs, usage = watched.store.unended("here", time.time(), 24.0)
    inventory = Inventory(
        node="here", has_gpus=False, time=1.0, devices=tuple(Device(id=f"cpu:{number}") for number in range(99))
    )
    started = [start.job_id for start in decide(jobs, (), inventory, time.time(), SchedulingConfig(), usage).starts]
    assert len(started) == 40 and [job.id for job in watched.queue.jobs()] == started


def test_only_jobs_that_wait_for_this_machine_have_a_place(watched: Watched) -> None:
    waits = watched.add("waits")
    others = [
        watched.add("runs", state="running"),
        watched.add("ended", state="failed", ended=1.0),
        watched.add("there", node="there"),
    ]
    assert watched.queue.places([waits, *others]) == {"waits": 1}
    made = watched.made
    watched.now += KEPT_S
    assert watched.queue.places(others) == {} and watched.made == made


def test_the_order_is_made_once_for_all_who_ask_within_a_second(watched: Watched) -> None:
    jobs = [watched.add(f"job-{number}") for number in range(5)]
    for _ in range(10):
        watched.queue.places(jobs)
        watched.queue.jobs()
    assert watched.made == 1
    watched.now += KEPT_S
    watched.queue.jobs()
    assert watched.made == 2


def test_a_job_that_comes_is_seen_at_once_and_one_that_goes_soon(watched: Watched) -> None:
    first, second = watched.add("first", ago=9), watched.add("second")
    assert watched.queue.places([second]) == {"second": 2}
    watched.store.jobs.update("first", lambda job: replace(job, state="cancelled", ended=1.0))
    assert watched.queue.places([second]) == {"second": 2}
    watched.queue.look_again()
    assert watched.queue.places([second]) == {"second": 1}
    third = watched.add("third", priority=1)
    assert watched.queue.places([second, third]) == {"third": 1, "second": 2}
    watched.store.jobs.update("third", lambda job: replace(job, state="cancelled", ended=1.0))
    watched.now += SEEN_S
    assert watched.queue.places([second]) == {"second": 1}
    fourth = watched.add("fourth", priority=1)
    assert watched.queue.places([first, second, fourth]) == {"fourth": 1, "second": 2}


def test_a_long_queue_is_not_ordered_for_every_job_that_comes(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_order, "LONG", 1)
    jobs = [watched.add("first", ago=9), watched.add("second")]
    assert len(watched.queue.places(jobs)) == 2
    jobs.append(watched.add("third"))
    assert set(watched.queue.places(jobs)) == {"first", "second"} and watched.made == 1
    watched.now += KEPT_S
    assert len(watched.queue.places(jobs)) == 3 and watched.made == 2
