"""The run directory: names, atomic writers and readers. It is the only interface between a run and everything else."""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from drumline.errors import RunDirExists

STOP_REQUEST, SAVE_REQUEST, RESTART_REQUEST = "stop", "save", "restart"
"""Files in `requests` by which a run is asked for something from outside."""

TORN = b"\x00\n"
"""What a torn line of a .jsonl file is ended with by the next writer. No line of JSON holds such a byte."""

ENDING_S = 10.0
"""How long processes of a run that was killed may still hold its directory: nothing is left of it after that."""

LOOK_S = 0.1
"""Between two tries to take a lock."""

NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
"""What file systems without locks answer."""

logger = logging.getLogger("drumline")


@dataclass(frozen=True)
class RunDir:
    """Names of the files of one run."""

    path: Path

    @classmethod
    def create(cls, path: Path) -> RunDir:
        """Make the directory, for its owner only (0700). Raises RunDirExists where something is there already."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            raise RunDirExists(
                f"the run directory {path} exists already",
                "give the run another name (--set name=...), or remove the directory if you no longer need it",
            ) from None
        run = cls(path)
        run.logs.mkdir(mode=0o700, exist_ok=True)  # who found the directory a moment ago may take a lock in it
        return run

    @property
    def config(self) -> Path:
        """The RunConfig as it was resolved from recipe and overrides."""
        return self.path / "config.yaml"

    @property
    def plan(self) -> Path:
        """Every derived number with its reason."""
        return self.path / "plan.json"

    @property
    def env(self) -> Path:
        """Versions and devices; never the environment itself."""
        return self.path / "env.json"

    @property
    def metrics(self) -> Path:
        """One line per log interval and per evaluation."""
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        """What happened: start, warnings, skipped updates, evaluation, end."""
        return self.path / "events.jsonl"

    @property
    def exit(self) -> Path:
        """How the run ended; absent while it runs."""
        return self.path / "exit.json"

    @property
    def logs(self) -> Path:
        """One log a rank, and the launcher's own."""
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        """One directory a saved step."""
        return self.path / "checkpoints"

    @property
    def requests(self) -> Path:
        """Where files ask a run for something: STOP_REQUEST, SAVE_REQUEST, RESTART_REQUEST (JSON with a `reason`)."""
        return self.path / "requests"

    @property
    def model(self) -> Path:
        """config.json of a Hugging Face model, from which `drumline export` makes a folder; absent for others."""
        return self.path / "model"

    @property
    def profile(self) -> Path:
        """What train.profile saw: the trace and what it comes to."""
        return self.path / "profile"

    def log_of(self, rank: int) -> Path:
        """What rank wrote to its standard streams and through logging."""
        return self.logs / f"rank_{rank}.log"

    def error_of(self, rank: int) -> Path:
        """The failure of one rank, in JSON; absent if it did not fail."""
        return self.logs / f"rank_{rank}.error.json"

    def checkpoint_of(self, step: int) -> Path:
        """The directory of the checkpoint taken after `step` updates."""
        return self.checkpoints / f"step_{step}"


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write a whole file or nothing: temporary file in the same directory, fsync, rename, fsync of the directory."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def remove_unfinished(out: Path) -> None:
    """Remove what processes that have ended left beside a folder that they did not come to finish: `.NAME.PID.tmp`."""
    for left in out.absolute().parent.glob(f".{glob.escape(out.name)}.*.tmp"):
        number = left.name.split(".")[-2]
        if number.isdigit() and not _is_alive(int(number)):
            shutil.rmtree(left, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def sync_directory(path: Path) -> None:
    """Make renames in this directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Write one JSON document atomically."""
    write_atomic(path, json.dumps(value, indent=2, default=str) + "\n")


def read_json(path: Path) -> Any:
    """Read one JSON document."""
    return json.loads(path.read_text(encoding="utf-8"))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a .jsonl file; torn lines, each left by a kill, are passed over. No file: no records."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(TORN) or not line.endswith(b"\n"):
                continue
            yield json.loads(line)


def keep_lines(path: Path, keep: Callable[[dict[str, Any]], bool]) -> int:
    """Rewrite a .jsonl file without the records that are not to be kept, and without torn lines.

    Atomically: a kill leaves all of it or what is kept. Returns how many records were dropped. No file: none.
    """
    if not path.exists():
        return 0
    found = list(read_lines(path))
    kept = [record for record in found if keep(record)]
    lines = "".join(json.dumps(record, default=str) + "\n" for record in kept).encode()
    if lines != path.read_bytes():
        write_atomic(path, lines)
    return len(found) - len(kept)


class LineWriter:
    """Appends JSON records to a .jsonl file, a whole line a write, so that a reader never sees half a record.

    A torn line, which a kill or a full disk has left at the file's end, stays one of its own, that readers pass over.
    """

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("a+b", buffering=0)

    def write(self, record: dict[str, Any]) -> None:
        """Append one record, stamped with the wall clock (`time`, seconds since 1970) unless it has a stamp.

        Raises OSError where there is no room for all of it; the torn line is then the last one.
        """
        line = json.dumps({"time": round(time.time(), 3), **record}, default=str).encode() + b"\n"
        # Looked at each time: a run and the process that records its GPUs write to the same files.
        if _ends_torn(self._file):
            line = TORN + line
        if self._file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        self._file.close()


def _ends_torn(file: IO[bytes]) -> bool:
    """Whether a file ends in the middle of a line."""
    size = os.fstat(file.fileno()).st_size
    return size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"


class Lock:
    """Keeps a run directory to one launcher, or one rank 0, at a time. The kernel gives it back when its holders end.

    Processes forked by the holder hold it too, until they end or it is released.
    """

    def __init__(self, run: RunDir, role: str, wait_s: float = 0.0) -> None:
        """Take it, waiting up to wait_s seconds. Raises RunDirExists that names who has it.

        role: `launch` is held by one launcher while its workers run (`launch-HOST` by one of a machine, where several
        machines may be at a run), `run` by rank 0 while a run is open in it.
        Where the file system knows no locks there is a warning, and nobody is kept out.
        """
        run.logs.mkdir(mode=0o700, exist_ok=True)
        self._file: IO[bytes] = (run.logs / f"{role}.lock").open("ab+", buffering=0)
        try:
            self._take(run, time.monotonic() + wait_s)
        except BaseException:
            self._file.close()
            raise

    def _take(self, run: RunDir, limit: float) -> None:
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno in NO_LOCKS:
                    logger.warning("%s: nothing keeps a second run out of this directory: %s", run.path, error)
                    return
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
            if time.monotonic() > limit:
                self._file.seek(0)
                holder = self._file.read().decode(errors="replace") or "another process"
                raise RunDirExists(
                    f"a run goes on in {run.path} already: {holder} has it",
                    "wait for its end or stop it, or give this run another name (--set name=...)",
                )
            time.sleep(LOOK_S)
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())

    def release(self) -> None:
        """Give it back, also for processes that were forked meanwhile; releasing twice is allowed."""
        if not self._file.closed:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()
