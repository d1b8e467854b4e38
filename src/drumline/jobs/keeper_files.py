"""The files by which an attempt's keeper and whoever looks after it know of each other; nothing else connects them."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

from drumline.jobs.records import OutputForm
from drumline.rundir import NO_LOCKS, RunDir, read_json, sync_directory, write_atomic, write_json

TORN_S = 5.0
"""Age from which a claim that cannot be read was left by a process that was killed while it wrote."""
ROOM_BYTES = 32768
"""Kept free from the beginning, so that a disk that has become full does not hide how an attempt ended."""

LOG_BYTES = 1 << 20
"""What is read of the end of a log, in which the last words stand: a command may have written gigabytes."""

HOLD_S = 1.0
"""How long a keeper tries to get its lock: whoever looks whether it is held holds it for a moment."""
_LOOK_S = 0.02

StepName = Literal["train", "export", "infer"]


@dataclass(frozen=True)
class Command:
    """One command of an attempt."""

    step: StepName
    words: tuple[str, ...]
    makes: str | None = None
    """What is there once it is done: it is passed over then."""


@dataclass(frozen=True)
class Claim:
    """Who has an attempt: it begins once, or never."""

    machine: str
    """See adoption.machine_id."""
    time: float
    """Seconds since 1970."""
    pid: int | None = None
    began: float | None = None
    """See adoption.began_of."""
    log_bytes: int = 0
    """What the log held before."""
    void: Literal["stopped", "refused"] | None = None
    """Why there is no process and will be none: it was stopped before it began, or could not be started."""
    message: str = ""
    fix: str = ""


@dataclass(frozen=True)
class EndRecord:
    """How an attempt ended, as its keeper saw it."""

    exit_status: int | None
    signal: int | None
    step: StepName
    message: str = ""
    fix: str = ""
    code: str | None = None
    time: float = 0.0


@dataclass(frozen=True)
class AttemptFiles:
    """Names of the files of one attempt of a job, and how they are written."""

    folder: Path
    """The job's own."""
    attempt: int

    @property
    def request(self) -> Path:
        """The commands."""
        return self.folder / f"attempt_{self.attempt}.request.json"

    @property
    def claim(self) -> Path:
        """Who has it."""
        return self.folder / f"attempt_{self.attempt}.json"

    @property
    def end(self) -> Path:
        """How it ended."""
        return self.folder / f"end_{self.attempt}.json"

    @property
    def room(self) -> Path:
        """Bytes that are given back for `end`."""
        return self.folder / f".end_{self.attempt}.room"

    @property
    def lock(self) -> Path:
        """Held by the keeper while it lives, also for those who cannot see its process: in another container."""
        return self.folder / f".attempt_{self.attempt}.lock"

    @property
    def log(self) -> Path:
        """What the commands of all attempts said."""
        return log_of(self.folder)

    @property
    def run(self) -> RunDir:
        """The run directory."""
        return run_of(self.folder)

    def write_request(self, commands: Sequence[Command]) -> None:
        """Keep the commands. Raises OSError."""
        write_json(self.request, [asdict(command) for command in commands])
        self.request.chmod(0o600)

    def read_request(self) -> list[Command]:
        """The commands. Raises OSError and ValueError."""
        return [Command(**{**each, "words": tuple(each["words"])}) for each in read_json(self.request)]

    def hold(self, wait_s: float = HOLD_S) -> IO[bytes] | None:
        """Take the keeper's lock, which lasts while the file is open; None where another has it. Raises OSError."""
        file = self.lock.open("ab")
        limit = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except OSError as error:
                if error.errno in NO_LOCKS:
                    return file
                if time.monotonic() > limit:
                    file.close()
                    return None
            time.sleep(_LOOK_S)

    def is_held(self) -> bool:
        """Whether a keeper lives somewhere on the machines that share this folder."""
        try:
            with self.lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError as error:
            return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
        return False

    def take(self, claim: Claim) -> bool:
        """Claim the attempt; False where somebody has. Whole or not at all, whatever happens meanwhile."""
        content = (json.dumps(asdict(claim)) + "\n").encode()
        draft = self.folder / f".{self.claim.name}.{secrets.token_hex(8)}.tmp"
        try:
            write_atomic(draft, content)
            try:
                os.link(draft, self.claim)
            except FileExistsError:
                return False
            except OSError:  # a file system without hard links
                return self._take_openly(content)
        finally:
            draft.unlink(missing_ok=True)
        sync_directory(self.folder)
        return True

    def _take_openly(self, content: bytes) -> bool:
        try:
            descriptor = os.open(self.claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        return True

    def read_claim(self) -> Claim | None:
        """Who has it; None: nobody yet, or it is just being written. Raises OSError where the folder is unreadable."""
        try:
            return Claim(**read_json(self.claim))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            age = time.time() - self.claim.stat().st_mtime
            return None if age < TORN_S else Claim("", 0.0)

    def write_end(self, end: EndRecord) -> None:
        """Say how it ended, with the room that was kept for that. Raises OSError."""
        self.room.unlink(missing_ok=True)
        write_json(self.end, asdict(end))

    def read_end(self) -> EndRecord | None:
        """How it ended; None: nobody has said so. Raises OSError where the folder is unreadable."""
        try:
            values: dict[str, Any] = read_json(self.end)
            return EndRecord(**values)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):  # not what the keeper writes, which is whole or not there
            return EndRecord(None, None, "train", f"{self.end.name} holds nothing that can be read")


def error_in(text: str) -> tuple[str, str] | None:
    """Problem and fix of the last error in what a command printed; None where it printed none."""
    _, mark, last = f"\n{text}".rpartition("\nerror: ")
    if not mark:
        return None
    problem, _, fix = last.strip().partition("\n  fix: ")
    return problem, fix


def end_of(log: Path, since: int = 0, most: int = LOG_BYTES) -> str:
    """What a log holds from a byte on, of that the last `most` bytes. Raises OSError."""
    with log.open("rb") as file:
        file.seek(max(since, file.seek(0, os.SEEK_END) - most))
        text = file.read(most).decode(errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")  # a progress bar goes back in its line


def log_of(folder: Path) -> Path:
    """What the commands of a job said, in its folder."""
    return folder / "command.log"


def run_of(folder: Path) -> RunDir:
    """The run directory of a job, in its folder."""
    return RunDir(folder / "run")


def exported_of(folder: Path) -> Path:
    """Where a job's model is written, in its folder."""
    return folder / "model"


def answers_of(folder: Path, form: OutputForm) -> Path:
    """Where the answers of a job that predicts appear, in its folder."""
    return folder / f"answers.{form}"


def rows_of(folder: Path) -> Path:
    """Texts that came with a job's request, in its folder."""
    return folder / "rows.jsonl"
