"""Opening a store: its file, its shape, and what is said where that fails."""

from __future__ import annotations

import resource
import sqlite3
import stat
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from drumline.config.service import ServiceConfig
from drumline.errors import ConfigError, MissingExtra, StoreError
from drumline.jobs.records import Job, Resources, Work
from drumline.jobs.store import JobFilter, open_store, store_url
from drumline.jobs.store.migration import SCRIPTS
from drumline.jobs.store.tables import REVISION, VERSION_TABLE, metadata


def a_job(job_id: str, settings_bytes: int = 0) -> Job:
    return Job(job_id, "ada", Work("train", {"x": "x" * settings_bytes}), Resources(1), created=1.0, tags=("t",))


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "store.sqlite3"
    store = open_store(f"sqlite:///{path}")
    store.jobs.add(a_job("job-1"))
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == ["store.sqlite3", "store.sqlite3-shm", "store.sqlite3-wal"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    store.close()
    store.close()
    assert [file.name for file in path.parent.iterdir()] == ["store.sqlite3"]


def test_what_was_stored_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.sqlite3'}"
    store = open_store(url)
    store.jobs.add(a_job("job-1"))
    store.close()
    store = open_store(url)
    assert store.jobs.get("job-1") == a_job("job-1")
    store.close()


def test_many_may_open_a_new_store_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.sqlite3'}"
    with ThreadPoolExecutor(6) as pool:
        stores = list(pool.map(open_store, [url] * 6))
    for number, store in enumerate(stores):
        store.jobs.add(a_job(f"job-{number}"))
    assert stores[0].jobs.find(JobFilter()).total == 6
    for store in stores:
        store.close()


def test_migrations_make_the_tables_that_the_code_knows(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.sqlite3'}"
    open_store(url).close()
    assert ScriptDirectory(str(SCRIPTS)).get_heads() == [REVISION]
    engine = create_engine(url)
    with engine.connect() as connection:
        options = {"version_table": VERSION_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_use_of_an_older_store_is_of_gpus_where_its_devices_are(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    store = open_store(f"sqlite:///{path}")
    ran = {"gpu": ("GPU-a", "n1"), "slot": ("cpu:0", "n2"), "gpu-waits": ("GPU-b", "n1"), "slot-waits": ("cpu:1", "n2")}
    for job_id, (device, node) in ran.items():
        devices = () if job_id.endswith("waits") else (device,)
        job = replace(a_job(job_id), node=node, attempt=1, devices=devices)
        store.jobs.add(job)
        with store.change() as change:
            change.spend(replace(job, devices=(device,)), 0.0, 10.0)
    store.close()
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE usage DROP COLUMN gpu_s")
    connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '0001'")
    connection.commit()
    connection.close()

    store = open_store(f"sqlite:///{path}")
    found = {use.job_id: (use.device_s, use.gpu_s) for use in store.jobs.usage(0.0, 1.0)}
    store.close()
    assert found == {job_id: (10.0, 0.0 if "slot" in job_id else 10.0) for job_id in ran}


def test_a_store_of_a_newer_drumline_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    open_store(f"sqlite:///{path}").close()
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"newer drumline \(its shape is 9999") as caught:
        open_store(f"sqlite:///{path}")
    assert "upgrade drumline" in caught.value.fix
    assert path.read_bytes() == before


def test_a_database_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE keys (door TEXT)")
    connection.close()
    with pytest.raises(StoreError, match="already exists"):
        open_store(f"sqlite:///{path}")
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("keys",)]
    connection.close()


def test_a_file_that_is_no_store_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    path.write_bytes(b"this is no database at all, but a text that is long enough to be looked at" * 20)
    with pytest.raises(StoreError, match=r"store\.sqlite3.*not a database") as caught:
        open_store(f"sqlite:///{path}")
    assert "backup" in caught.value.fix


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be opened") as caught:
        open_store(f"sqlite:///{tmp_path / 'file' / 'store.sqlite3'}")
    assert caught.value.code == "store"


@pytest.mark.parametrize("url", ["", "nonsense", "sqlite://", "sqlite:///:memory:", "mysql://ada:secret@host/db"])
def test_other_addresses_are_refused_without_their_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_a_server_that_is_not_there_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(f"postgresql://ada:secret@/jobs?host={tmp_path}")
    assert str(tmp_path) in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "server runs" in caught.value.fix


@pytest.mark.parametrize(("package", "url"), [("sqlalchemy", "sqlite:////x"), ("psycopg", "postgresql://h/d")])
def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, package: str, url: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"{package}(.|\n)*drumline\[serve\]"):
        open_store(url)


def test_a_full_disk_leaves_the_store_whole(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    store = open_store(f"sqlite:///{path}")
    store.jobs.add(a_job("job-1"))
    wal_bytes = path.with_name("store.sqlite3-wal").stat().st_size
    with largest_file(wal_bytes + 20_000):
        with pytest.raises(StoreError, match=r"store\.sqlite3 failed") as caught:
            store.jobs.add(a_job("job-2", settings_bytes=1_000_000))
        assert "room" in caught.value.fix
        job = store.jobs.get("job-1")
        assert job == a_job("job-1")
    assert store.jobs.find(JobFilter(tag="t")).total == 1
    assert store.jobs.counts() == {"queued": 1}
    store.jobs.add(a_job("job-2", settings_bytes=1_000_000))
    assert store.jobs.find(JobFilter(tag="t")).total == 2
    store.close()


def test_a_service_has_its_store_in_its_data_directory(tmp_path: Path) -> None:
    assert store_url(ServiceConfig(data_dir=tmp_path)) == f"sqlite:///{tmp_path}/store.sqlite3"
    assert store_url(ServiceConfig(database="postgresql://h/d")) == "postgresql://h/d"
