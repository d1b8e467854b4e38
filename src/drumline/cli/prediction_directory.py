"""The directory of a prediction run, as the command meets it: made, gone on with, finished, or refused."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drumline.errors import ConfigError, DataError, RunDirExists
from drumline.predictions import DONE, PredictionDir
from drumline.rundir import (
    NO_LOCKS,
    RESTART_REQUEST,
    STOP_REQUEST,
    Lock,
    RunDir,
    read_json,
    sync_directory,
    write_atomic,
)

if TYPE_CHECKING:
    from drumline.config.inference import InferenceConfig

BEGINS_S, LOOK_S = 30.0, 0.05
"""How long another machine may take to write its settings, and how often it is looked."""
FORMS = (".jsonl", ".csv", ".parquet")


def check_places(config: InferenceConfig) -> None:
    """Raise ConfigError or DataError for what can be seen before anything is made: files in, file out."""
    from drumline.config.recipes import expand_path

    out = config.output.file
    if out.suffix.lower() not in FORMS:
        raise ConfigError(
            f"output.file: {out} has no ending that says what it is to be", f"end it in {', '.join(FORMS)}"
        )
    for name in config.rows.files:
        if not glob.has_magic(name) and not Path(expand_path(name)).exists():
            raise DataError(f"there is no file {name}", "check the path that --data gives")
    with _said("the output's folder", out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(out.parent, os.W_OK):
        raise ConfigError(f"the folder {out.parent} may not be written to", "give another --out")


def finished(directory: PredictionDir, config: InferenceConfig) -> bool:
    """Whether this very run has ended well before. Nothing is written.

    Raises ConfigError where the output exists and is not its own, and where the run was another one's, by its settings.
    """
    out = config.output.file
    if directory.run.config.is_file() and directory.summary.is_file():
        _refuse_other(directory, config)
        if out.exists():
            return True
        if not directory.rows.exists():
            raise ConfigError(
                f"the run in {directory.path} is finished, and its output {out} is not there any more",
                f"remove {directory.path} to answer all rows again",
            )
    if out.exists():
        raise ConfigError(f"{out} exists already", "give another --out, or remove the file if you no longer need it")
    return False


@dataclass(frozen=True)
class Taken:
    """A run's directory in the hands of this command."""

    locks: Sequence[Lock]
    """What keeps other launchers out."""
    goes_on: bool
    """Whether rows had been answered before."""
    helps: bool = False
    """Whether another machine's launcher leads the run."""

    def release(self) -> None:
        """Let others have it."""
        for lock in self.locks:
            lock.release()


def take(directory: PredictionDir, config: InferenceConfig) -> Taken:
    """Make the directory, take the one that is there, or help where another machine's launcher is at it.

    A run of which no row is answered begins anew where settings have changed, or where it failed before any worker came
    to a batch. Raises RunDirExists for what is no prediction run and while another launcher of this machine, or workers
    that it would begin anew under, are at it, and ConfigError for other settings.
    """
    run = directory.run
    was_there = directory.path.exists()
    with _said("the run directory", directory.path):
        with suppress(RunDirExists):  # another machine may make it just now
            RunDir.create(directory.path)
        if was_there and not run.config.is_file():
            _refuse_stranger(directory.path)
        locks = [Lock(run, f"launch-{socket.gethostname()}")]
        try:
            with suppress(RunDirExists):
                locks.append(Lock(run, "launch"))
            leads = len(locks) == 2
            if leads:
                _go_on(directory, config)
            else:
                _help(directory, config)
        except BaseException:
            for lock in locks:
                lock.release()
            raise
    return Taken(locks, was_there and _has_answers(directory), helps=not leads)


def _help(directory: PredictionDir, config: InferenceConfig) -> None:
    """Take the settings of a run that another machine's launcher is about to begin, or has begun."""
    limit = time.monotonic() + BEGINS_S
    while not directory.run.config.is_file() and time.monotonic() < limit:
        time.sleep(LOOK_S)
    _refuse_other(directory, config)


def _go_on(directory: PredictionDir, config: InferenceConfig) -> None:
    run = directory.run
    if run.config.is_file() and _has_answers(directory):
        _refuse_other(directory, config)
    elif run.config.is_file():
        _begin_anew(directory, config)
    for request in (STOP_REQUEST, RESTART_REQUEST):
        (run.requests / request).unlink(missing_ok=True)  # meant for an attempt that has ended
    run.exit.unlink(missing_ok=True)
    _write_config(directory, config, first=False)


def join(directory: PredictionDir, config: InferenceConfig) -> None:
    """Make the directory, or find that another process has, for one of several workers that start at once anywhere.

    Raises as `take` does; the settings of a run that is there already win where they may differ.
    """
    with _said("the run directory", directory.path):
        with suppress(RunDirExists):
            RunDir.create(directory.path)
        directory.run.logs.mkdir(mode=0o700, exist_ok=True)
        if not directory.run.config.is_file():
            _refuse_stranger(directory.path)
            _write_config(directory, config, first=True)
    _refuse_other(directory, config)


def _write_config(directory: PredictionDir, config: InferenceConfig, *, first: bool) -> None:
    """Write config.yaml and the folders; first: the one that comes first is kept, whoever else writes one."""
    from drumline.config.infer_file import dump_inference_config

    text = dump_inference_config(config)
    for folder in (directory.ledger, directory.windows, directory.trouble, directory.answers, directory.workers):
        folder.mkdir(mode=0o700, exist_ok=True)
    if not first:
        write_atomic(directory.run.config, text)
        return
    own = directory.path / f".config.yaml.{socket.gethostname()}-{os.getpid()}.tmp"
    own.write_text(text, encoding="utf-8")
    try:
        with suppress(FileExistsError):
            os.link(own, directory.run.config)
            sync_directory(directory.path)
    except OSError:  # a file system without hard links: all write the same
        write_atomic(directory.run.config, text)
    finally:
        own.unlink(missing_ok=True)


def _refuse_other(directory: PredictionDir, config: InferenceConfig) -> None:
    from drumline.config.infer_changes import refuse_other

    refuse_other(_kept(directory), config, str(directory.path))


def _kept(directory: PredictionDir) -> InferenceConfig:
    from drumline.config.infer_file import load_inference_config

    try:
        return load_inference_config(directory.run.config, {})
    except ConfigError as error:
        why = f"its config.yaml is none that can be read here ({error.problem.splitlines()[0]})"
        raise _stranger(directory.path, why) from None


def _begin_anew(directory: PredictionDir, config: InferenceConfig) -> None:
    """Forget what was planned for other settings, or for data that nobody could work on, as nothing is answered.

    What is known of rows that kill workers stays. Raises RunDirExists where workers are at it that others have started.
    """
    from drumline.config.infer_changes import differences

    failed = directory.run.exit.is_file() and read_json(directory.run.exit).get("reason") == "failed"
    useless = failed and (not _has_learnt(directory) or _data_changed(directory))
    if not useless and not any(change.alters for change in differences(_kept(directory), config)):
        return
    _refuse_living(directory)
    for folder in (directory.ledger, directory.workers):
        forgotten = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(forgotten, ignore_errors=True)
        # At once: what a kill leaves of it must not be taken for the ledger.
        with suppress(FileNotFoundError):
            folder.rename(forgotten)
        shutil.rmtree(forgotten, ignore_errors=True)


def _has_learnt(directory: PredictionDir) -> bool:
    """Whether a worker has begun a batch."""
    begun = directory.state.is_file() and any(directory.state.read_bytes())
    return begun or (directory.trouble.is_dir() and any(directory.trouble.iterdir()))


def _data_changed(directory: PredictionDir) -> bool:
    """Whether a file that the rows were read from is not what it was."""
    known = read_json(directory.rows_facts).get("sources", []) if directory.rows_facts.is_file() else []
    for source in known:
        try:
            found = Path(source["path"]).stat()
        except OSError:
            return True
        if (found.st_size, found.st_mtime_ns) != (source["size"], source["mtime_ns"]):
            return True
    return False


def _refuse_living(directory: PredictionDir) -> None:
    """Raise RunDirExists where any process holds a lock of the ledger. This process must hold none itself."""
    try:
        with directory.locks.open("r+b") as locks:
            fcntl.lockf(locks, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(locks, fcntl.LOCK_UN)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno in NO_LOCKS:
            return
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise RunDirExists(
            f"workers are at the run in {directory.path}, and it would begin anew",
            "wait until they have ended, stop them, or give another --out",
        ) from None


def _has_answers(directory: PredictionDir) -> bool:
    return directory.state.is_file() and DONE in directory.state.read_bytes()


def _refuse_stranger(path: Path) -> None:
    """Pass what was killed before it had a config.yaml, and nothing else."""
    own = {"logs", "ledger", "workers"}
    if not path.is_dir() or any(each.name not in own and not each.name.startswith(".config.") for each in _in(path)):
        raise _stranger(path, "it has no config.yaml")


def _in(path: Path) -> Iterator[Path]:
    yield from path.iterdir()


def _stranger(path: Path, why: str) -> RunDirExists:
    return RunDirExists(
        f"the run directory {path} exists already, and holds no prediction run: {why}",
        "give another --out or --set run_dir=..., or remove the directory if you no longer need it",
    )


@contextmanager
def _said(what: str, path: Path) -> Iterator[None]:
    """What the system refuses, in words."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{what} {path} cannot be made or written: {error.strerror}",
            "give another --out, or --set run_dir=... in a folder that may be written to and has room",
        ) from None


def record_end(directory: PredictionDir, status: int, message: str, facts: dict[str, Any]) -> None:
    """Write exit.json. Raises OSError where there is no room."""
    from drumline.rundir import write_json

    reason = {0: "done", 3: "interrupted"}.get(status, "failed")
    write_json(directory.run.exit, {"exit_status": status, "reason": reason, "message": message, **facts})


def records_of(directory: PredictionDir, pid: int) -> list[Path]:
    """The records of workers on this machine that have, or had, this pid."""
    return list(directory.workers.glob(f"{glob.escape(socket.gethostname())}-{pid}-*.jsonl"))


def come_to(directory: PredictionDir) -> object:
    """What the run has come to: batches done, and what is known of those in trouble. Only to be compared."""
    done = directory.state.read_bytes().count(DONE) if directory.state.is_file() else 0
    known = []
    for file in sorted(directory.trouble.glob("*.json")):
        with suppress(FileNotFoundError):  # written anew just now
            known.append((file.name, file.stat().st_mtime_ns))
    return done, tuple(known)
