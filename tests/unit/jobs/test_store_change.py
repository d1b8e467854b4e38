"""Changes under the scheduling lock: leases, versions, use of devices."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from drumline.errors import Conflict
from drumline.jobs.records import Job, Resources, Work
from drumline.jobs.store import Store, Use
from drumline.jobs.store.spent import KEPT_S, KnownUsage
from tests.fresh_store import fresh_store

DAY_S = 86_400.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = fresh_store(tmp_path)
    yield store
    store.close()


def add(store: Store, job_id: str, node: str = "n1", owner: str = "ada") -> Job:
    job = Job(job_id, owner, Work("train", {}), Resources(1), created=1.0, node=node)
    return store.jobs.add(job)[0]


def test_a_change_reads_jobs_of_one_node_in_some_states(store: Store) -> None:
    for job_id, node in (("job-b", "n1"), ("job-a", "n1"), ("job-c", "n2")):
        add(store, job_id, node)
    with store.change() as change:
        assert [job.id for job in change.jobs({"queued", "running"}, "n1")] == ["job-a", "job-b"]
        assert [job.id for job in change.jobs({"queued"})] == ["job-a", "job-b", "job-c"]
        assert change.jobs({"running"}) == ()
        assert change.jobs(()) == ()


def test_a_save_over_an_older_version_is_refused(store: Store) -> None:
    old = add(store, "job-1")
    with store.change() as change:
        new = change.save(replace(old, state="starting", attempt=1))
        assert new.version == 1
        assert change.save(replace(new, state="running")).version == 2
    with pytest.raises(Conflict, match="job-1"), store.change() as change:
        change.save(replace(old, state="cancelled"))
    with pytest.raises(Conflict), store.change() as change:
        change.save(replace(old, id="job-9"))
    job = store.jobs.get("job-1")
    assert job is not None and (job.state, job.version) == ("running", 2)


def test_an_ended_job_keeps_its_state(store: Store) -> None:
    job = add(store, "job-1")
    with store.change() as change:
        ended = change.save(replace(job, state="cancelled"))
    with pytest.raises(Conflict), store.change() as change:
        change.save(replace(ended, state="failed"))
    assert store.jobs.counts() == {"cancelled": 1}


def test_a_change_that_raises_leaves_everything_as_it_was(store: Store) -> None:
    job = add(store, "job-1")
    with pytest.raises(ZeroDivisionError), store.change() as change:
        change.save(replace(job, state="starting"))
        change.grant(job, ["g1"], 1.0, 30.0)
        change.tell_waits({"job-1": "x"})
        raise ZeroDivisionError
    assert store.jobs.get("job-1") == job
    assert store.leases.all() == ()
    assert store.jobs.counts() == {"queued": 1}
    with store.change() as change:
        assert change.jobs({"queued"}) == (job,)


def test_no_device_is_leased_twice(store: Store) -> None:
    first, second, elsewhere = add(store, "job-1"), add(store, "job-2"), add(store, "job-3", node="n2")
    with store.change() as change:
        granted = change.grant(first, ["g1", "g2"], 10.0, 30.0)
        assert [(lease.device, lease.since, lease.expires) for lease in granted] == [
            ("g1", 10.0, 40.0),
            ("g2", 10.0, 40.0),
        ]
        with pytest.raises(Conflict, match="leased to another job than job-2"):
            change.grant(second, ["g3", "g2"], 10.0, 30.0)
        change.grant(elsewhere, ["g1"], 10.0, 30.0)
        assert change.leases("n1") == granted
    assert store.leases.all("n1") == granted
    assert len(store.leases.all()) == 3
    with store.change() as change:
        assert change.release("job-1") == 2
        assert change.release("job-1") == 0
        change.grant(second, ["g2"], 11.0, 30.0)


def test_leases_are_renewed_and_never_shortened(store: Store) -> None:
    first, second = add(store, "job-1"), add(store, "job-2")
    with store.change() as change:
        change.grant(first, ["g1"], 0.0, 30.0)
        change.grant(second, ["g2"], 0.0, 30.0)
    assert store.leases.renew("n1", ["job-1"], 60.0) == 1
    assert store.leases.renew("n2", ["job-1"], 90.0) == 0
    store.leases.renew("n1", ["job-1"], 50.0)
    assert store.leases.renew("n1", [], 90.0) == 0
    assert [lease.expires for lease in store.leases.all()] == [60.0, 30.0]


def test_changes_take_turns(store: Store) -> None:
    jobs = [add(store, f"job-{number}") for number in range(8)]

    def start(job: Job) -> int:
        """Take the first device that is free, as a scheduler would."""
        with store.change() as change:
            taken = len(change.leases("n1"))
            time.sleep(0.002)
            change.grant(job, [f"g{taken}"], 1.0, 30.0)
        return taken

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(start, jobs)) == list(range(8))


def test_readers_do_not_wait_for_a_change(store: Store) -> None:
    job = add(store, "job-1")
    with store.change() as change:
        change.save(replace(job, state="starting"))
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(store.jobs.get, "job-1").result(5) == job


def test_a_change_within_a_change_is_our_mistake(store: Store) -> None:
    with pytest.raises(AssertionError, match="a change within a change"), store.change():
        store.jobs.tell_progress("job-1", 1, {})
    assert not store.jobs.tell_progress("job-1", 1, {})


def test_a_queue_is_read_anew_where_it_changed(store: Store) -> None:
    first, second = add(store, "job-1"), add(store, "job-2")
    with store.change() as change:
        read = change.jobs({"queued"})
        assert read == (first, second)
    with store.change() as change:
        assert change.jobs({"queued"})[0] is read[0]  # not made of its row again
        change.tell_waits({"job-1": "waits for 2 GPUs", "job-2": "", "job-9": "x"})
    store.jobs.update("job-2", lambda job: replace(job, name="other"))
    with store.change() as change:
        told, changed = change.jobs({"queued"})
        assert told == replace(first, waits_for="waits for 2 GPUs")
        assert (changed.name, changed.version) == ("other", 1)
        change.save(replace(told, state="starting"))
    with store.change() as change:
        assert [job.id for job in change.jobs({"queued"})] == ["job-2"]


def test_what_was_rolled_back_is_not_remembered(store: Store) -> None:
    job = add(store, "job-1")
    with pytest.raises(ZeroDivisionError), store.change() as change:
        change.save(replace(job, name="never was"))
        assert [found.name for found in change.jobs({"queued"})] == ["never was"]
        raise ZeroDivisionError
    store.jobs.update("job-1", lambda job: replace(job, name="new"))
    with store.change() as change:
        assert [(found.name, found.version) for found in change.jobs({"queued"})] == [("new", 1)]


def test_waiting_is_told_of_those_that_wait(store: Store) -> None:
    job = add(store, "job-1")
    with store.change() as change:
        change.save(replace(job, state="starting"))
        change.tell_waits({"job-1": "x"})
    assert store.jobs.get("job-1") == replace(job, state="starting", version=1)


def test_use_is_noted_by_day(store: Store) -> None:
    job = replace(add(store, "job-1"), attempt=1, devices=("g1", "g2"))
    other = replace(add(store, "job-2", owner="bob"), attempt=1, devices=("g1",))
    with store.change() as change:
        change.spend(job, 1.0, 2.0, 5.0)
        change.spend(job, DAY_S - 10, DAY_S + 30, 100.0)  # the same attempt: in its place
        change.spend(replace(job, attempt=2), DAY_S, DAY_S + 5)
        change.spend(other, DAY_S, DAY_S)
    first, second = "1970-01-01", "1970-01-02"
    expected = (
        Use("job-2", "bob", second, "queued", other.created, None, 1, 0.0, 0.0, 0.0, None, 0.0),
        Use("job-1", "ada", first, "queued", job.created, None, 1, 10.0, 20.0, 20.0, 25.0, 20.0),
        # Of two attempts one was measured.
        Use("job-1", "ada", second, "queued", job.created, None, 2, 35.0, 70.0, 70.0, 75.0, 60.0),
    )
    assert store.jobs.usage(0.0, DAY_S) == expected
    assert store.jobs.usage(DAY_S, DAY_S, owner="ada") == expected[2:]
    assert store.jobs.usage(5 * DAY_S, 6 * DAY_S) == ()


def test_use_of_slots_is_not_of_gpus(store: Store) -> None:
    job = replace(add(store, "job-1"), attempt=1, devices=("cpu:0", "cpu:1"))
    with store.change() as change:
        change.spend(job, 0.0, 30.0)
    (use,) = store.jobs.usage(0.0, DAY_S)
    assert (use.run_s, use.device_s, use.gpu_s) == (30.0, 60.0, 0.0)


def test_jobs_that_go_on_are_told_of_every_machine(store: Store) -> None:
    jobs = [add(store, "job-1"), add(store, "job-2", owner="bob", node="n2"), add(store, "job-3")]
    with store.change() as change:
        running = [change.save(replace(job, state="running", attempt_began=10.0)) for job in jobs[:2]]
    assert sorted(store.jobs.running(), key=lambda job: job.id) == running
    assert store.jobs.running("bob") == (running[1],)
    assert store.jobs.several(["job-3", "job-9"]) == {"job-3": jobs[2]}


def test_use_is_forgotten_by_halves(store: Store) -> None:
    now = 100 * DAY_S
    old = replace(add(store, "job-1"), attempt=1, devices=("g1",))
    older = replace(add(store, "job-2", owner="bob"), attempt=1, devices=("g1",))
    ancient = replace(add(store, "job-3", owner="eve"), attempt=1, devices=("g1",))
    elsewhere = replace(add(store, "job-4", owner="zoe", node="n2"), attempt=1, devices=("g1",))
    with store.change() as change:
        for job, days in ((old, 0), (older, 2), (ancient, 50), (elsewhere, 0)):
            change.spend(job, now - days * DAY_S - 100, now - days * DAY_S)
        used = change.usage("n1", now, half_life_h=24.0)
    assert used == {"ada": pytest.approx(100.0), "bob": pytest.approx(25.0)}


def test_what_ended_long_ago_is_summed_once_a_minute(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now, clock = 100 * DAY_S + 1000.0, [0.0]
    monkeypatch.setattr(store, "_spent", KnownUsage(lambda: clock[0]))
    jobs = [replace(add(store, f"job-{number}"), attempt=1, devices=("g1",)) for number in range(4)]

    def used() -> float:
        with store.change() as change:
            return change.usage("n1", now, half_life_h=24.0).get("ada", 0.0)

    def spend(job: Job, began: float, ended: float) -> None:
        with store.change() as change:
            change.spend(job, began, ended)

    def spend_elsewhere(job: Job, began: float, ended: float) -> None:
        """As another service on the same store does, which has a sum of its own."""
        with monkeypatch.context() as there:
            there.setattr(store, "_spent", KnownUsage())
            spend(job, began, ended)

    assert used() == 0.0
    spend_elsewhere(jobs[0], now - 600, now - 500)
    assert used() == 0.0, "the table was summed again"
    spend_elsewhere(jobs[1], now - 20, now - 10)
    assert used() == pytest.approx(10.0), "what ended just now counts at once"
    clock[0] = KEPT_S
    assert used() == pytest.approx(110.0)
    spend(jobs[2], now - 2000, now)
    assert used() == pytest.approx(2110.0, rel=0.04), "and so does what it took before midnight"


def test_what_runs_counts_up_to_now(store: Store) -> None:
    job = add(store, "job-1")
    with store.change() as change:
        change.save(replace(job, state="running", attempt_began=1000.0, devices=("g1", "g2", "g3")))
        assert change.usage("n1", 1010.0, 24.0) == {"ada": pytest.approx(30.0)}
