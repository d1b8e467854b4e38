"""How long the store of jobs takes to read, list and change.

Usage: python benchmarks/store.py [--url URL] [--jobs 1500 100000] [--queued 1000] [--repeats 20]. Fills an empty store,
SQLite in a temporary folder unless a URL is given (an empty PostgreSQL database), and prints a table in milliseconds:
median and slowest of the repeats by the clock, and the median CPU time of this process (of SQLite all of it, of
PostgreSQL the client's part). Jobs are of 20 owners of very different activity; nine in ten are fine-tunings, all have
a tag, one in a thousand a rare one. Lists are of 50.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from drumline.jobs.records import END_STATES, Job, Resources, State, Work
from drumline.jobs.store import JobFilter, Store, open_store

DAY_S = 86_400.0
NOW = 1_800_000_000.0
NODE = "node"
WAITING: frozenset[State] = frozenset({"queued", "starting", "running", "stopping"})
RESULT = {"success": True, "model_path": "/data/jobs/x/model", "best_loss": 1.25, "gpu_stats": [{"use": 0.5}] * 4}


def a_job(number: int, total: int, queued: int) -> Job:
    """One of many: the newest ones wait, the others have ended."""
    chance = random.Random(number)
    waits = number >= total - queued
    return Job(
        f"job-{chance.getrandbits(64):016x}",
        f"owner-{min(int(chance.expovariate(0.3)), 19)}",
        Work("train" if chance.random() < 0.1 else "finetune", {f"train.field_{n}": n * 1.5 for n in range(20)}),
        Resources(1),
        created=NOW - 60.0 * (total - number),
        state="queued" if waits else chance.choice(("succeeded",) * 8 + ("failed", "cancelled")),
        name=f"run {number}",
        node=NODE,
        tags=("all", "rare") if number % 1000 == 0 else ("all",),
        user_id=f"user-{number % 50}",
        result={} if waits else RESULT,
    )


def fill(store: Store, total: int, queued: int) -> Job:
    """Add that many jobs, and what the newest thousand that ended have used; one from the middle of them."""
    jobs = [a_job(number, total, queued) for number in range(total)]
    # Through the store's own rows, in one transaction: each job by itself would take minutes.
    from drumline.jobs.store.rows import insert_job

    with store._database.write(lock=True) as connection:
        for job in jobs:
            insert_job(connection, job)
    with store.change() as change:
        for job in [job for job in jobs if job.has_ended][-1000:]:
            change.spend(replace(job, attempt=1, devices=("g",)), job.created, job.created + 60.0)
    return jobs[total // 2]


def cases(store: Store, middle: Job) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is measured."""
    ended = frozenset(END_STATES)
    later = store.jobs.find(JobFilter()).next_cursor
    lists = {
        "list": JobFilter(),
        "list of an owner": JobFilter(owner="owner-0"),
        "list of ended": JobFilter(states=ended),
        "list of an owner's ended": JobFilter(owner="owner-0", states=ended),
        "list of waiting and running": JobFilter(states=WAITING),
        "list of a kind": JobFilter(kind="train"),
        "list of a tag": JobFilter(tag="all"),
        "list of a rare tag": JobFilter(tag="rare"),
        "list of a user_id of an owner": JobFilter(owner="owner-0", user_id="user-7"),
        "list of a day": JobFilter(created_after=NOW - 2 * DAY_S, created_before=NOW - DAY_S),
        "list of a rare word": JobFilter(text=middle.name),
    }
    yield "detail", lambda: store.jobs.get(middle.id)
    for name, wanted in lists.items():
        yield name, lambda wanted=wanted: store.jobs.find(wanted)  # type: ignore[misc]
    yield "second page", lambda: store.jobs.find(JobFilter(), later)
    yield "counts by state", store.jobs.counts
    yield "tick: read queue and leases", lambda: read_queue(store)
    yield "tick: use by owner", lambda: read_usage(store)
    yield "tell progress", lambda: store.jobs.tell_progress(middle.id, {"step": 1})
    yield "add", lambda: store.jobs.add(replace(middle, id=f"new-{random.getrandbits(64):x}"))


def read_queue(store: Store) -> int:
    """What a tick of the scheduler reads."""
    with store.change() as change:
        return len(change.jobs(WAITING, NODE)) + len(change.leases(NODE))


def read_usage(store: Store) -> dict[str, float]:
    """What fair shares are made of."""
    with store.change() as change:
        return change.usage(NODE, NOW, 24.0)


def measure(store: Store, total: int, queued: int, repeats: int) -> None:
    """Print one table."""
    middle = fill(store, total, queued)
    print(f"\n{total} jobs, {queued} of them queued\n{'':32}{'median':>9}{'slowest':>9}{'CPU':>9}")
    for name, ask in cases(store, middle):
        ask()
        clock, cpu = [], []
        for _ in range(repeats):
            began, began_cpu = time.perf_counter(), time.process_time()
            ask()
            clock.append(1000 * (time.perf_counter() - began))
            cpu.append(1000 * (time.process_time() - began_cpu))
        print(f"{name:32}{statistics.median(clock):9.2f}{max(clock):9.2f}{statistics.median(cpu):9.2f}", flush=True)


@contextmanager
def opened(url: str | None) -> Iterator[Store]:
    """The store to fill."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(url or f"sqlite:///{Path(folder) / 'store.sqlite3'}")
        try:
            yield store
        finally:
            store.close()


def main() -> None:
    """Measure stores of each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of an empty PostgreSQL database; then give one size")
    parser.add_argument("--jobs", type=int, nargs="+", default=[1500, 100_000])
    parser.add_argument("--queued", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load}")
    for total in given.jobs:
        with opened(given.url) as store:
            measure(store, total, given.queued, given.repeats)


if __name__ == "__main__":
    main()
