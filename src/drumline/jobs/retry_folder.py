"""The folder of a job that does another one's work again: its texts, and where it goes on, its run up to the end."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drumline.config.load import config_from_mapping, dump_config, load_config
from drumline.errors import StoreError
from drumline.manifest import MANIFEST, checkpoints_of
from drumline.rundir import RunDir, sync_directory, write_atomic

RUN, ROWS = "run", "rows.jsonl"
COPIED = ("plan.json", "env.json", "metrics.jsonl", "events.jsonl", "model")
"""What a run that goes on is told by, besides config.yaml and checkpoints; how it ended is not."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Make an error of the file system one that says what to do."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{folder} cannot be written: {error.strerror or error}", "see whether the disk of data_dir is full"
        ) from error


def write_rows(folder: Path, rows: bytes) -> None:
    """Keep a request's texts in the folder, for its owner only. Raises OSError."""
    descriptor = os.open(folder / ROWS, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(rows)
        file.flush()
        os.fsync(descriptor)
    sync_directory(folder)


def bring_rows(old: Path, new: Path) -> bool:
    """Have the texts of one job in another one's folder too; False where there are none. Raises OSError."""
    if not (old / ROWS).is_file():
        return False
    link_or_copy(old / ROWS, new / ROWS)
    sync_directory(new)
    return True


def has_checkpoint(folder: Path) -> bool:
    """Whether a job has left something to go on from."""
    run = RunDir(folder / RUN)
    return run.config.is_file() and bool(checkpoints_of(run))


def bring_run(old: Path, new: Path) -> None:
    """Make a run directory in `new` that goes on where the one in `old` stood.

    Checkpoints, which nobody changes once they are whole, are hard links where the file system has them. All of it is
    there, or nothing. Raises OSError, and ConfigError for a config.yaml that this drumline does not read.
    """
    source = RunDir(old / RUN)
    made = RunDir(new / f".{RUN}.{secrets.token_hex(4)}")
    made.path.mkdir(mode=0o700)
    try:
        made.logs.mkdir(mode=0o700)
        write_atomic(made.config, _moved_config(source.config, old, new))
        for name in COPIED:
            _bring(source.path / name, made.path / name)
        made.checkpoints.mkdir()
        for found in sorted(source.checkpoints.iterdir()):
            if (found / MANIFEST).is_file():  # else it is half of one
                shutil.copytree(found, made.checkpoints / found.name, copy_function=link_or_copy)
        sync_directory(made.path)
        made.path.rename(new / RUN)
        sync_directory(new)
    except BaseException:
        shutil.rmtree(made.path, ignore_errors=True)
        raise


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """One file under two names; where the file system has no such thing, a copy. Raises OSError."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target)


def _bring(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    elif source.is_file():
        shutil.copy2(source, target)


def _moved_config(path: Path, old: Path, new: Path) -> str:
    """config.yaml with the new folder wherever it named the old one: run directory, texts, cache."""
    values = moved(load_config(path).model_dump(mode="json"), str(old), str(new))
    return dump_config(config_from_mapping(values, str(path)))


def moved(value: Any, old: str, new: str) -> Any:
    """A JSON value with a new folder wherever a text names the old one, or something below it."""
    if isinstance(value, dict):
        return {key: moved(each, old, new) for key, each in value.items()}
    if isinstance(value, list):
        return [moved(each, old, new) for each in value]
    if isinstance(value, str) and (value == old or value.startswith(f"{old}/")):
        return new + value.removeprefix(old)
    return value
