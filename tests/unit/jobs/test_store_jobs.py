"""Jobs in the store: added once, changed one after the other, listed page by page."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drumline.errors import ConfigError, Conflict, IdempotencyConflict
from drumline.jobs.records import Job, Resources, State, Work
from drumline.jobs.store import Idempotency, JobFilter, Store
from drumline.jobs.store.listing import write_cursor
from tests.fresh_store import fresh_store

NUM_THREADS = 8
WORK = Work("finetune", {"train.lr": 1e-3}, model="/m", model_name="GPT2", data=("/d",), parallel="auto", export=True)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = fresh_store(tmp_path)
    yield store
    store.close()


def a_job(job_id: str, created: float = 1000.0, **fields: Any) -> Job:
    values = {"owner": "ada", "work": WORK, "resources": Resources(2, priority=3), "node": "n1", **fields}
    return Job(id=job_id, created=created, queued_since=created, **values)


def in_threads(work: Callable[[int], Any]) -> list[Any]:
    """Results of work(0), work(1), …, begun at the same moment."""
    barrier = threading.Barrier(NUM_THREADS)

    def begin(number: int) -> Any:
        barrier.wait(10)
        return work(number)

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(pool.map(begin, range(NUM_THREADS)))


def test_a_job_comes_back_as_it_was(store: Store) -> None:
    job = a_job(
        "job-1",
        name="été 夏 🥁",
        tags=("x", "y"),
        progress={"loss": math.inf, "text": "\0\ud800"},
        result={"gpu_stats": [{"a": None}]},
        started=0.1 + 0.2,
        devices=("GPU-1", "GPU-2"),
        stop="cancel",
    )
    assert store.jobs.add(job) == (job, True)
    assert store.jobs.get("job-1") == job
    assert store.jobs.get("job-2") is None


def test_a_job_whose_id_is_taken_is_refused(store: Store) -> None:
    store.jobs.add(a_job("job-1"))
    with pytest.raises(Conflict, match="there is a job job-1 already"):
        store.jobs.add(a_job("job-1", owner="bob", tags=("t",)))
    assert store.jobs.counts() == {"queued": 1}
    assert store.jobs.find(JobFilter(tag="t")).total == 0


def test_parallel_duplicates_make_one_job(store: Store) -> None:
    key = Idempotency("ada", "k", "digest")
    added = in_threads(lambda number: store.jobs.add(a_job(f"job-{number}", tags=("t",)), key))
    assert [is_new for _, is_new in added].count(True) == 1
    (job_id,) = {job.id for job, _ in added}
    assert [job.id for job in store.jobs.find(JobFilter()).items] == [job_id]
    assert store.jobs.counts() == {"queued": 1}


def test_an_idempotency_key_is_of_one_owner_and_one_request(store: Store) -> None:
    store.jobs.add(a_job("job-1"), Idempotency("ada", "k", "digest"))
    assert store.jobs.added_before(Idempotency("bob", "k", "digest")) is None
    assert store.jobs.add(a_job("job-2", owner="bob"), Idempotency("bob", "k", "digest"))[1]
    with pytest.raises(IdempotencyConflict, match="made job-1"):
        store.jobs.add(a_job("job-3"), Idempotency("ada", "k", "another"))
    assert store.jobs.get("job-3") is None


def test_every_update_counts(store: Store) -> None:
    store.jobs.add(a_job("job-1"))
    in_threads(lambda _: store.jobs.update("job-1", lambda job: replace(job, failures=job.failures + 1)))
    job = store.jobs.get("job-1")
    assert job is not None
    assert (job.failures, job.version) == (NUM_THREADS, NUM_THREADS)


def test_an_update_may_leave_a_job_as_it_is(store: Store) -> None:
    store.jobs.add(a_job("job-1"))
    assert store.jobs.update("job-1", lambda job: None) == a_job("job-1")
    assert store.jobs.update("job-1", lambda job: replace(job)) == a_job("job-1")
    assert store.jobs.update("job-2", lambda job: None) is None


def test_an_end_state_is_final(store: Store) -> None:
    store.jobs.add(a_job("job-1", state="succeeded"))
    with pytest.raises(Conflict):
        store.jobs.update("job-1", lambda job: replace(job, state="queued"))
    changed = store.jobs.update("job-1", lambda job: replace(job, result={"success": True}))
    assert changed is not None and changed.version == 1
    assert store.jobs.get("job-1") == changed
    assert store.jobs.counts() == {"succeeded": 1}


def test_whose_a_job_is_never_changes(store: Store) -> None:
    store.jobs.add(a_job("job-1", tags=("t",)))
    store.jobs.update("job-1", lambda job: replace(job, owner="eve", created=1.0, tags=(), name="new"))
    assert store.jobs.get("job-1") == a_job("job-1", tags=("t",), name="new", version=1)


def test_progress_is_no_change(store: Store) -> None:
    store.jobs.add(a_job("job-1", state="running"))
    assert store.jobs.tell_progress("job-1", 0, {"step": 5, "loss": math.nan})
    job = store.jobs.get("job-1")
    assert job is not None
    assert (job.version, job.progress["step"], math.isnan(job.progress["loss"])) == (0, 5, True)
    store.jobs.update("job-1", lambda job: replace(job, state="succeeded", progress={"step": 9}))
    assert not store.jobs.tell_progress("job-1", 0, {"step": 6})
    job = store.jobs.get("job-1")
    assert job is not None and job.progress == {"step": 9}


def test_what_is_told_of_an_earlier_attempt_is_not_written_over_the_present_one(store: Store) -> None:
    store.jobs.add(a_job("job-1", state="running", attempt=2, progress={"energy_before_j": 5.0}))
    assert not store.jobs.tell_progress("job-1", 1, {"step": 5})
    job = store.jobs.get("job-1")
    assert job is not None and job.progress == {"energy_before_j": 5.0}
    assert store.jobs.tell_progress("job-1", 2, {"step": 6})


def test_active_jobs_are_read_while_a_change_goes_on(store: Store) -> None:
    states: tuple[State, ...] = ("queued", "starting", "running", "stopping", "failed")
    for number, state in enumerate(states):
        store.jobs.add(a_job(f"job-{number}", state=state, interruptions=number))
    store.jobs.add(a_job("job-8", state="running", node="n2"))
    with store.change(), ThreadPoolExecutor(1) as pool:
        found = pool.submit(store.jobs.active, "n1").result(5)
    assert found == tuple(a_job(f"job-{number}", state=states[number], interruptions=number) for number in (1, 2, 3))


def test_an_update_of_something_else_keeps_newer_progress(store: Store) -> None:
    store.jobs.add(a_job("job-1", state="running"))
    with store.change() as change:
        (read,) = change.jobs({"running"})
    store.jobs.tell_progress("job-1", 0, {"step": 7})
    store.jobs.update("job-1", lambda job: replace(job, stop="cancel"))
    job = store.jobs.get("job-1")
    assert read.progress == {}
    assert job is not None and job.progress == {"step": 7}


def test_pages_have_each_job_once_newest_first(store: Store) -> None:
    states: tuple[State, ...] = ("queued", "failed", "succeeded")
    for number in range(30):
        # Several of the same moment: their ids decide.
        store.jobs.add(a_job(f"job-{number:02}", created=float(number // 4), state=states[number % 3], tags=("t",)))
    for wanted in (
        JobFilter(),
        JobFilter(states=frozenset({"queued"})),
        JobFilter(states=frozenset({"queued", "failed"}), owner="ada"),
        JobFilter(tag="t", states=frozenset({"failed", "succeeded"})),
        JobFilter(kind="finetune"),
    ):
        expected = [f"job-{n:02}" for n in reversed(range(30)) if not wanted.states or states[n % 3] in wanted.states]
        found, cursor = [], None
        while True:
            page = store.jobs.find(wanted, cursor, 7)
            assert page.total == len(expected)
            found += [job.id for job in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert found == expected


def test_a_page_stays_where_it_is_while_new_jobs_come(store: Store) -> None:
    for number in range(4):
        store.jobs.add(a_job(f"job-{number}", created=float(number)))
    first = store.jobs.find(JobFilter(), limit=2)
    store.jobs.add(a_job("job-9", created=9.0))
    assert [job.id for job in store.jobs.find(JobFilter(), first.next_cursor, 2).items] == ["job-1", "job-0"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (JobFilter(owner="bob"), {"job-2"}),
        (JobFilter(owner="nobody"), set()),
        (JobFilter(kind="train"), {"job-3"}),
        (JobFilter(tag="b"), {"job-1", "job-2"}),
        (JobFilter(tag="b", owner="ada"), {"job-1"}),
        (JobFilter(tag="a,b"), set()),
        (JobFilter(user_id="u\0"), {"job-3"}),
        (JobFilter(training_type="auto"), {"job-2"}),
        (JobFilter(created_after=2.0), {"job-2", "job-3"}),
        (JobFilter(created_before=2.0), {"job-1"}),
        (JobFilter(tag="b", created_after=1.5), {"job-2"}),
        (JobFilter(text="gpt"), {"job-1", "job-2"}),
        (JobFilter(text="ÉTÉ"), {"job-2"}),
        (JobFilter(text="%"), {"job-3"}),
        (JobFilter(text="_"), set()),
        (JobFilter(text="A/B"), {"job-1"}),
        (JobFilter(text="//"), set()),
        (JobFilter(text="\ud800"), set()),
        (JobFilter(text="'; DROP TABLE jobs"), set()),
        (JobFilter(created_after=math.nan), set()),
    ],
)
def test_filters(store: Store, wanted: JobFilter, expected: set[str]) -> None:
    store.jobs.add(a_job("job-1", created=1.0, tags=("a", "b"), name="a/b"))
    store.jobs.add(a_job("job-2", created=2.0, tags=("b",), owner="bob", name="Été", training_type="auto"))
    store.jobs.add(a_job("job-3", created=3.0, work=Work("train", {}), name="100 %", user_id="u\0"))
    page = store.jobs.find(wanted)
    assert {job.id for job in page.items} == expected
    assert page.total == len(expected)
    later = store.jobs.find(wanted, write_cursor((2.5, "job")))
    assert {job.id for job in later.items} == expected - {"job-3"}
    assert later.total == len(expected)


@pytest.mark.parametrize("cursor", ["", "x", "é", "\0", "bnVsbA", "W10", "Im" * 400, write_cursor((math.nan, "job"))])
def test_a_cursor_of_nobody_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(ConfigError, match="cursor"):
        store.jobs.find(JobFilter(), cursor)


def test_lists_show_what_has_changed(store: Store) -> None:
    store.jobs.add(a_job("job-1", state="failed"))
    store.jobs.add(a_job("job-2"))
    assert {job.version for job in store.jobs.find(JobFilter()).items} == {0}
    with store.change() as change:
        change.jobs({"queued"})
        change.tell_waits({"job-2": "waits for a GPU"})
    store.jobs.update("job-1", lambda job: replace(job, message="new"))
    found = {job.id: job for job in store.jobs.find(JobFilter()).items}
    assert (found["job-1"].message, found["job-2"].waits_for) == ("new", "waits for a GPU")


def test_counts_are_by_state_and_owner(store: Store) -> None:
    store.jobs.add(a_job("job-1"))
    store.jobs.add(a_job("job-2"))
    store.jobs.add(a_job("job-3", owner="bob", state="lost"))
    store.jobs.update("job-1", lambda job: replace(job, state="cancelled"))
    assert store.jobs.counts() == {"queued": 1, "cancelled": 1, "lost": 1}
    assert store.jobs.counts("ada") == {"queued": 1, "cancelled": 1}
    assert store.jobs.counts("nobody") == {}


def test_active_jobs_of_a_machine_of_all_others_and_their_newest_signs_of_life(store: Store) -> None:
    states: tuple[State, ...] = ("queued", "starting", "running", "stopping", "lost")
    for node in ("n1", "n2", "n3"):
        for state in states:
            store.jobs.add(a_job(f"{node}-{state}", node=node, state=state))
    assert [job.id for job in store.jobs.active("n1")] == ["n1-running", "n1-starting", "n1-stopping"]
    assert [job.id for job in store.jobs.active_elsewhere("n2")] == [
        f"{node}-{state}" for node in ("n1", "n3") for state in ("running", "starting", "stopping")
    ]
    assert store.services.newest() == {}
    for service_id, node, at in (("a", "n1", 5.0), ("b", "n1", 7.0), ("c", "n2", 6.0)):
        store.services.heartbeat(service_id, node, 1, at)
    assert store.services.newest() == {"n1": 7.0, "n2": 6.0}
    store.services.forget("b")
    assert store.services.newest() == {"n1": 5.0, "n2": 6.0}
