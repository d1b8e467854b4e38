"""The run directory: names, atomic writers and readers. It is the only interface between a run and everything else."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from drumline.errors import RunDirExists


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
        run.logs.mkdir(mode=0o700)
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
    """Yield the records of a .jsonl file; a torn last line, left by a kill, is passed over. No file: no records."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


class LineWriter:
    """Appends JSON records to a .jsonl file, a whole line a write, so that a reader never sees half a record."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab", buffering=0)

    def write(self, record: dict[str, Any]) -> None:
        """Append one record, stamped with the wall clock (`time`, seconds since 1970) unless it has a stamp.

        Raises OSError where there is no room for all of it; the torn line is then the last one.
        """
        line = json.dumps({"time": round(time.time(), 3), **record}, default=str).encode() + b"\n"
        if self._file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        self._file.close()
