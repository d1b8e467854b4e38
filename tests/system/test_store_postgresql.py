"""The store on a real PostgreSQL server, and with many processes on it and on SQLite."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import create_engine, text

from drumline.errors import StoreError
from drumline.jobs.records import Job, Resources, Work
from drumline.jobs.store import JobFilter, Store, open_store
from drumline.jobs.store.tables import metadata
from tests.postgresql_server import PostgresqlServer, postgresql_server
from tests.unit.jobs import test_store_change, test_store_jobs, test_store_keys_settings

pytestmark = pytest.mark.system

LIMIT_S = 60.0

BEGIN = """
import sys
from dataclasses import replace
from drumline.jobs.records import Job, Resources, Work
from drumline.jobs.store import Idempotency, open_store
store = open_store(sys.argv[1])
name = sys.argv[2]
print("open", flush=True)
sys.stdin.readline()
"""

ADD_THE_SAME = """
key = Idempotency("ada", "k", "digest")
for number in range(20):
    job = Job(f"job-{name}-{number}", "ada", Work("train", {}), Resources(1), created=1.0, tags=("t",))
    job, is_new = store.jobs.add(job, replace(key, key=f"k{number}"))
    print(number, job.id, int(is_new))
store.close()
"""

TAKE_DEVICES = """
for number in range(20):
    job = Job(f"job-{name}-{number}", "ada", Work("train", {}), Resources(1), created=1.0, node="n1")
    store.jobs.add(job)
    with store.change() as change:
        change.grant(job, [f"g{len(change.leases('n1'))}"], 1.0, 30.0)
        change.save(replace(job, state="starting"))
    store.jobs.update("counter", lambda job: replace(job, failures=job.failures + 1))
store.close()
"""

STOP_HALFWAY = """
with store.change() as change:
    (job,) = change.jobs({"queued"})
    change.grant(job, ["g1"], 1.0, 30.0)
    change.save(replace(job, state="starting"))
    print("halfway", flush=True)
    sys.stdin.readline()
"""


def every_test_of(module: ModuleType) -> dict[str, object]:
    """What a store does on SQLite, it does on PostgreSQL."""
    return {name: value for name, value in vars(module).items() if name.startswith("test_")}


for unit in (test_store_jobs, test_store_change, test_store_keys_settings):
    globals().update(every_test_of(unit))
del unit


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    with postgresql_server() as server:
        yield server


@pytest.fixture(scope="module")
def shared_url(server: PostgresqlServer) -> str:
    url = server.make_database()
    open_store(url).close()
    return url


@pytest.fixture
def store(shared_url: str) -> Iterator[Store]:
    """An empty store in PostgreSQL; what the test before has left is removed."""
    engine = create_engine(shared_url)
    with engine.begin() as connection:
        connection.execute(text(f"TRUNCATE {', '.join(metadata.tables)} RESTART IDENTITY"))
    engine.dispose()
    store = open_store(shared_url)
    yield store
    store.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, server: PostgresqlServer, tmp_path: Path) -> str:
    """A database that no store has been in."""
    return server.make_database() if request.param == "postgresql" else f"sqlite:///{tmp_path / 'store.sqlite3'}"


def a_job(job_id: str) -> Job:
    return Job(job_id, "ada", Work("train", {}), Resources(1), created=1.0, node="n1")


def begin(url: str, code: str, name: str) -> subprocess.Popen[str]:
    """A process that opens the store and waits for a line before it does what the code says."""
    command = [sys.executable, "-c", BEGIN + code, url, name]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def say(process: subprocess.Popen[str], expected: str) -> None:
    """Wait until a process says something."""
    assert process.stdout is not None
    assert process.stdout.readline().strip() == expected


def in_processes(url: str, code: str) -> list[list[str]]:
    """What two processes print that open a new store at once, and then do the same at once."""
    processes = [begin(url, code, str(number)) for number in range(2)]
    try:
        for process in processes:
            say(process, "open")
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        printed = [process.communicate(timeout=LIMIT_S)[0].splitlines() for process in processes]
        assert [process.returncode for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return printed


def test_processes_add_the_same_request_once(url: str) -> None:
    printed = in_processes(url, ADD_THE_SAME)
    found: dict[str, set[str]] = {}
    num_new = 0
    for line in chain.from_iterable(printed):
        number, job_id, is_new = line.split()
        found.setdefault(number, set()).add(job_id)
        num_new += int(is_new)
    assert [len(ids) for ids in found.values()] == [1] * 20
    store = open_store(url)
    assert num_new == store.jobs.find(JobFilter(tag="t")).total == store.jobs.counts()["queued"] == 20
    store.close()


def test_processes_take_turns(url: str) -> None:
    store = open_store(url)
    store.jobs.add(a_job("counter"))
    in_processes(url, TAKE_DEVICES)
    assert {lease.device for lease in store.leases.all()} == {f"g{number}" for number in range(40)}
    counter = store.jobs.get("counter")
    assert counter is not None and counter.failures == counter.version == 40
    assert store.jobs.counts() == {"starting": 40, "queued": 1}
    store.close()


def test_progress_that_is_told_during_a_change_stays(store: Store) -> None:
    job, _ = store.jobs.add(replace(a_job("job-1"), state="running"))
    with store.change() as change:
        change.jobs({"running"})
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(store.jobs.tell_progress, "job-1", 0, {"step": 7}).result(5)
        change.save(replace(job, state="stopping"))
    job_now = store.jobs.get("job-1")
    assert job_now == replace(job, state="stopping", version=1, progress={"step": 7})


def test_a_process_killed_halfway_has_changed_nothing(url: str) -> None:
    store = open_store(url)
    job, _ = store.jobs.add(a_job("job-1"))
    process = begin(url, STOP_HALFWAY, "x")
    try:
        say(process, "open")
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        say(process, "halfway")
        assert store.jobs.get("job-1") == job
    finally:
        process.kill()
        process.communicate()
    began = time.monotonic()
    with store.change() as change:
        assert change.leases() == ()
        change.save(replace(job, state="starting"))
    assert time.monotonic() - began < 5.0
    store.close()


def test_a_server_that_goes_away_and_comes_back() -> None:
    with postgresql_server() as server:
        store = open_store(server.make_database())
        job, _ = store.jobs.add(a_job("job-1"))
        with pytest.raises(StoreError) as caught, store.change() as change:
            change.save(replace(job, state="starting"))
            server.stop()
            change.grant(job, ["g1"], 1.0, 30.0)
        assert "server runs" in caught.value.fix
        with pytest.raises(StoreError):
            store.jobs.get("job-1")
        server.start()
        assert store.jobs.get("job-1") == job
        with pytest.raises(StoreError), store.change() as change:
            change.save(replace(job, state="starting"))
            server.stop()  # just before the commit
        server.start()
        assert store.jobs.get("job-1") == job
        with store.change() as change:
            change.save(replace(job, state="starting"))
        server.stop()
        server.start()  # while nobody asked: no request is told of it
        assert store.jobs.counts() == {"starting": 1}
        store.close()


def test_a_database_that_is_not_there_is_said(server: PostgresqlServer) -> None:
    url = server.make_database()
    with pytest.raises(StoreError, match="does not exist") as caught:
        open_store(url.replace("/test_", "/none_"))
    assert "createdb" in caught.value.fix
