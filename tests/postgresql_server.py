"""A real PostgreSQL server for tests: of the installed package, on a socket in its own folder, ended afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

START_LIMIT_S = 30.0
LOOK_S = 0.05


class PostgresqlServer:
    """One server; it listens on no port, and whoever may enter its folder may connect."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._user = "postgres" if os.geteuid() == 0 else None  # the server refuses to run as root
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(folder, account.pw_uid, account.pw_gid)
        self._server: subprocess.Popen[bytes] | None = None
        self._num_databases = 0
        options = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"]
        command = [str(programs() / "initdb"), "-D", str(folder / "data"), *options]
        subprocess.run(command, check=True, capture_output=True, user=self._user, cwd="/", timeout=60)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [str(programs() / "postgres"), "-D", str(self._folder / "data"), "-k", str(self._folder), "-h", ""]
        log = self._folder / "server.log"
        with log.open("ab") as stream:
            self._server = subprocess.Popen(
                [*command, "-c", "fsync=off"], stdout=stream, stderr=stream, user=self._user, cwd="/"
            )
        limit = time.monotonic() + START_LIMIT_S
        while True:
            try:
                psycopg.connect(host=str(self._folder), user="postgres", dbname="postgres").close()
                return
            except psycopg.OperationalError:
                if self._server.poll() is not None or time.monotonic() > limit:
                    raise RuntimeError(f"the server did not start:\n{log.read_text()}") from None
            time.sleep(LOOK_S)

    def make_database(self) -> str:
        """Make an empty database; its SQLAlchemy URL."""
        self._num_databases += 1
        name = f"test_{self._num_databases}"
        with psycopg.connect(host=str(self._folder), user="postgres", dbname="postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return f"postgresql+psycopg://postgres@/{name}?host={self._folder}"

    def stop(self) -> None:
        """End it at once, as a crash would; what was committed is there after the next start. Twice is allowed."""
        if self._server is not None:
            self._server.send_signal(signal.SIGQUIT)
            self._server.wait(20)
            self._server = None


@contextmanager
def postgresql_server() -> Iterator[PostgresqlServer]:
    """A running server, about 2 s after it was asked for; nothing is left of it afterwards."""
    # Not below a test's own folder: a socket's path may have 107 characters, and its user must reach it.
    folder = Path(tempfile.mkdtemp(prefix="pg_", dir="/tmp"))
    try:
        server = PostgresqlServer(folder)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def programs() -> Path:
    """The folder of the newest server that is installed. Raises RuntimeError that says what to install."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if not found:
        raise RuntimeError("no PostgreSQL server is installed: apt-get install postgresql")
    return found[-1].parent
