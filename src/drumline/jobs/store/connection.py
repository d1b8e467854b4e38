"""Connections and transactions, and what a database's refusals mean to a user."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, make_url, text

from drumline.errors import ConfigError, MissingExtra, StoreError

CACHE_KIB = 256
"""Of a connection to SQLite: the system keeps the file in memory anyway, and there are many connections."""

BUSY_S = 30.0
"""How long a change waits for those before it. A change takes milliseconds."""

IDLE_S = 60.0
"""After which PostgreSQL ends a transaction whose service says nothing: its machine may have lost power."""

LOCK_KEY = 0x64726D6C
"""Of the advisory lock that stands for scheduling, in PostgreSQL."""

WRITES = "drumline_writes"

_ADVICE = (
    ("53100", "", "make room on the database server's disk; what was stored before is whole"),
    ("53300", "", "raise max_connections of the database server, or run fewer services"),
    ("", "connection slots", "raise max_connections of the database server, or run fewer services"),
    ("", "too many clients", "raise max_connections of the database server, or run fewer services"),
    ("28", "", "check user and password (a file that libpq reads, as ~/.pgpass)"),
    ("", "authentication", "check user and password (a file that libpq reads, as ~/.pgpass)"),
    ("", "password", "check user and password (a file that libpq reads, as ~/.pgpass)"),
    ("", 'role "', "check the user of the database's address, or make it (createuser)"),
    ("42", "", "give drumline a database of its own, in which its user may create tables"),
    ("", "does not exist", "make the database first (createdb)"),
    ("", "", "see that the server runs and can be reached from here; the service goes on when it is back"),
)
"""By SQLSTATE and words of PostgreSQL: what to do. The first that fits."""


class Database:
    """One database, used by all threads of a process. Each transaction is kept whole or not at all."""

    def __init__(self, address: str) -> None:
        """Prepare to connect. Raises ConfigError for a URL of no kind that is known."""
        url = _known(address)
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self.name = url.database or "" if self.is_sqlite else url.render_as_string(hide_password=True)
        self._engine = _sqlite_engine(url) if self.is_sqlite else _postgresql_engine(url)
        # Of two queries of one reading each may see another moment; that saves PostgreSQL's clients two ways there.
        self._reader = self._engine if self.is_sqlite else self._engine.execution_options(isolation_level="AUTOCOMMIT")
        # Threads of one process wait for each other here: SQLite's own waiting is done by looking again and again.
        self._turn = threading.Lock()
        self._mine = threading.local()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection to read through."""
        with self._explained(), self._reader.connect() as connection:
            yield connection

    @contextmanager
    def write(self, lock: bool = False) -> Iterator[Connection]:
        """A transaction, committed at the end of the block unless it raises. lock: under the scheduling lock.

        Raises StoreError where the database fails; errors of the block pass through, as does IntegrityError.
        """
        with self._explained(), self._taking_turns(), self._engine.connect() as plain:
            connection = plain.execution_options(**{WRITES: True})
            with connection.begin():
                if lock and not self.is_sqlite:
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
                yield connection

    def prepare(self) -> None:
        """Let readers of an SQLite file go on while it is written to. It stays so; on PostgreSQL it is so."""
        if not self.is_sqlite:
            return
        limit = time.monotonic() + BUSY_S
        while True:
            try:
                with self._explained(), self._engine.connect() as connection:
                    raw = connection.connection.driver_connection
                    assert isinstance(raw, sqlite3.Connection)
                    raw.execute("PRAGMA journal_mode = WAL")
                    return
            except StoreError as error:
                # SQLite does not wait for another process that does the same at this moment.
                if not isinstance(error.__cause__, sqlite3.OperationalError) or time.monotonic() > limit:
                    raise
                if "locked" not in str(error.__cause__):
                    raise
            time.sleep(0.02)

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._engine.dispose()

    @contextmanager
    def _taking_turns(self) -> Iterator[None]:
        # It would wait for itself.
        assert not getattr(self._mine, "writes", False), "a change within a change: use what the outer one gives"
        if self.is_sqlite and not self._turn.acquire(timeout=BUSY_S):
            raise _busy(self.name)
        self._mine.writes = True
        try:
            yield
        finally:
            self._mine.writes = False
            if self.is_sqlite:
                self._turn.release()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except exc.IntegrityError:
            raise
        except exc.TimeoutError as error:
            raise StoreError(
                f"all connections to the store {self.name} are in use", "ask again later; fewer requests at once"
            ) from error
        except (exc.DBAPIError, sqlite3.Error) as error:
            raise _explain(error, self.name, self.is_sqlite) from error


def _known(address: str) -> URL:
    advice = "give sqlite:////absolute/path or postgresql+psycopg://user@host/name"
    try:
        url = make_url(address)
    except exc.ArgumentError as error:
        raise ConfigError("the address of the store is no SQLAlchemy URL", advice) from error
    if url.get_backend_name() == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if url.drivername in ("sqlite", "sqlite+pysqlite") and url.database and url.database != ":memory:":
        return url
    raise ConfigError(f"a store cannot be kept in {url.render_as_string(hide_password=True)}", advice)


def _sqlite_engine(url: URL) -> Engine:
    path = Path(url.database or "")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Its -wal and -shm take after it.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise StoreError(
            f"the store {path} cannot be opened: {error.strerror}",
            "give a folder that this user may write to (data_dir)",
        ) from error
    engine = create_engine(
        url, connect_args={"timeout": BUSY_S}, pool_size=8, max_overflow=56, pool_timeout=BUSY_S, hide_parameters=True
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None  # transactions begin below, not where the driver thinks best
        connection.execute("PRAGMA foreign_keys = ON")
        # What was answered to a client must outlive a power failure too.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A change that began as a reader would fail where another one wrote in between.
        writes = connection.get_execution_options().get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgresql_engine(url: URL) -> Engine:
    try:
        engine = create_engine(
            url,
            connect_args={"connect_timeout": 10, "keepalives_idle": 30, "application_name": "drumline"},
            pool_size=8,
            max_overflow=12,
            pool_timeout=BUSY_S,
            pool_pre_ping=True,
            hide_parameters=True,
        )
    except ImportError as error:
        raise MissingExtra("psycopg", "serve") from error

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = {int(1000 * BUSY_S)}")
            cursor.execute(f"SET idle_in_transaction_session_timeout = {int(1000 * IDLE_S)}")
        connection.commit()

    return engine


def _busy(name: str) -> StoreError:
    return StoreError(
        f"the store {name} was not free within {BUSY_S:.0f} s",
        "look for a process that holds it (a backup, a stopped service)",
    )


def _explain(error: BaseException, name: str, is_sqlite: bool) -> StoreError:
    """The user's words for a refusal. The statement and its values stay out of them."""
    origin = getattr(error, "orig", None) or error
    said = str(origin).strip().splitlines()[0] if str(origin).strip() else type(origin).__name__
    return (
        _explain_sqlite(said, name) if is_sqlite else _explain_postgresql(said, name, getattr(origin, "sqlstate", None))
    )


def _explain_sqlite(said: str, name: str) -> StoreError:
    if "locked" in said or "busy" in said:
        return _busy(name)
    advice = f"see that the disk of {Path(name).parent} is well and has room; what was stored before is whole"
    if "full" in said:
        advice = f"make room on the disk of {Path(name).parent}; what was stored before is whole"
    elif "readonly" in said or "unable to open" in said:
        advice = "let the service's user own the file and its folder, and write there"
    elif "malformed" in said or "not a database" in said:
        advice = "put a backup in its place, or move it away to begin a new one"
    return StoreError(f"the store {name} failed: {said}", advice)


def _explain_postgresql(said: str, name: str, sqlstate: str | None) -> StoreError:
    if sqlstate == "55P03":
        return _busy(name)
    # A connection that is refused has no code, only words.
    known = (advice for code, words, advice in _ADVICE if (sqlstate or "").startswith(code) and words in said)
    return StoreError(f"the store {name} failed: {said}", next(known))
