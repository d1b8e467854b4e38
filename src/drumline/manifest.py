"""What lies in a checkpoint folder and whether all of it is there: names, sizes and checksums, without torch."""

from __future__ import annotations

import hashlib
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from drumline.errors import DataError
from drumline.rundir import RunDir, read_json

MANIFEST = "manifest.json"
"""Written last into a checkpoint folder."""

Format = Literal["whole", "sharded"]

_STEP = re.compile(r"step_(\d+)")


class Entry(NamedTuple):
    """One file of a checkpoint."""

    file: str
    """Its name in the folder."""
    node: int
    """Which file system it lies on: the lowest rank of those that share it."""
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint is made of. Every file system has a copy, which differs in `node` only."""

    step: int
    files: tuple[Entry, ...]
    """Of all file systems."""
    world_size: int
    """Of the run that saved it."""
    kind: str
    """Of parallelism."""
    format: Format
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of an evaluation at this very step; empty where there was none."""
    created: float = 0.0
    """Seconds since 1970."""
    node: int = 0
    """The file system that this copy lies on."""

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "files": [entry._asdict() for entry in self.files]}

    @property
    def here(self) -> tuple[Entry, ...]:
        """The files on this copy's file system."""
        return tuple(entry for entry in self.files if entry.node == self.node)


class Listed(NamedTuple):
    """One checkpoint folder of a run, whole or not."""

    step: int
    path: Path
    bytes: int
    """Of all files in it."""
    time: float
    """When it was saved, seconds since 1970."""
    metrics: Mapping[str, float]


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a checkpoint folder. Raises DataError where there is none, or it is torn."""
    try:
        found = read_json(path / MANIFEST)
        files = tuple(Entry(**entry) for entry in found.pop("files"))
        manifest = Manifest(files=files, **found)
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise DataError(f"{path} is no complete checkpoint: {error}", "name another step_<n> directory") from error
    if manifest.format not in ("whole", "sharded") or any(Path(entry.file).name != entry.file for entry in files):
        raise DataError(f"{path / MANIFEST} is none of ours", "name another step_<n> directory")
    return manifest


def check(path: Path, *, contents: bool = True, share: tuple[int, int] = (0, 1)) -> list[str]:
    """What is wrong with the checkpoint in this folder, a line a problem; empty: it is valid.

    contents: also read every file and compare checksums; share (i, n): of every n-th file only, from the i-th on.
    Looked at is what lies on this file system. The list of a sharded checkpoint's parts is a pickle, which runs what
    its writer wants: folder and files must be this user's own, or root's.
    """
    try:
        manifest = read_manifest(path)
    except DataError as error:
        return [error.problem]
    index, count = share
    problems = [
        problem
        for number, entry in enumerate(manifest.here)
        if (problem := _problem_of(path, entry, contents=contents and number % count == index))
    ]
    if manifest.format == "sharded":
        problems += _strangers(path, manifest)
    return problems


def _problem_of(path: Path, entry: Entry, *, contents: bool) -> str | None:
    file = path / entry.file
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            return f"{entry.file} is no file"
        if found.st_size != entry.size:
            return f"{entry.file} has {found.st_size} bytes, its manifest says {entry.size}"
        if contents and digest(file) != entry.sha256:
            return f"{entry.file} is damaged: its checksum is not what its manifest says"
    except FileNotFoundError:
        return f"{entry.file} is missing"
    except OSError as error:
        return f"{entry.file} cannot be read: {error}"
    return None


def _strangers(path: Path, manifest: Manifest) -> Iterator[str]:
    for file in (path, *(path / name for name in (MANIFEST, *(entry.file for entry in manifest.here)))):
        try:
            owner = file.stat().st_uid
        except OSError:
            continue  # told already
        if owner not in (0, os.getuid()):
            yield f"{file} belongs to user {owner}: it could run code as you"


def out_of_reach(path: Path, rank: int, world_size: int) -> str | None:
    """Why this rank could not load the valid checkpoint in this folder; None: it can.

    A sharded one that was saved on several file systems needs all its parts in one folder, or the same ranks where they
    were.
    """
    manifest = read_manifest(path)
    if manifest.format == "whole" or all(entry.node == manifest.node for entry in manifest.files):
        return None
    if all((path / entry.file).exists() for entry in manifest.files):
        return None
    if world_size == manifest.world_size and any(_written_by(entry.file, rank) for entry in manifest.here):
        return None
    return (
        f"{path} was saved by {manifest.world_size} ranks on several file systems, and the parts on the others cannot "
        f"be reached by rank {rank} of {world_size}"
    )


def _written_by(file: str, rank: int) -> bool:
    return file.startswith(f"__{rank}_")


def checkpoints_of(run: RunDir) -> list[Listed]:
    """The checkpoint folders of a run, whole or not, newest step first."""
    found = []
    for path in run.checkpoints.glob("step_*"):
        if (match := _STEP.fullmatch(path.name)) and path.is_dir():
            with suppress(FileNotFoundError):  # a run that goes on has just removed it
                found.append(_listed(int(match[1]), path))
    return sorted(found, key=lambda listed: listed.step, reverse=True)


def _listed(step: int, path: Path) -> Listed:
    size = sum(file.stat().st_size for file in path.iterdir())
    try:
        manifest = read_manifest(path)
    except DataError:
        return Listed(step, path, size, path.stat().st_mtime, {})
    return Listed(step, path, size, manifest.created, manifest.metrics)


def newest_valid(run: RunDir) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The checkpoint of the highest step that is whole, and the newer ones that are not, each with what is wrong."""
    skipped: list[tuple[Path, str]] = []
    for listed in checkpoints_of(run):
        if not (problems := check(listed.path)):
            return listed.path, skipped
        skipped.append((listed.path, "; ".join(problems)))
    return None, skipped


def best_first(metrics: Mapping[int, float | None], mode: Literal["min", "max"]) -> list[int]:
    """Steps by their metric, the best first and of equal ones the later; those that have none, or NaN, are left out."""
    known = [(value, step) for step, value in metrics.items() if value is not None and not math.isnan(value)]
    sign = 1 if mode == "min" else -1
    return [step for _, step in sorted(known, key=lambda found: (sign * found[0], -found[1]))]


def chosen(run: RunDir, step: int | None) -> tuple[Path, list[str]]:
    """The checkpoint of this step, or the newest valid one with what is wrong with the newer ones, a line each.

    Raises DataError where there is none. Of a step that was asked for only the folder is looked for.
    """
    path, skipped = (run.checkpoint_of(step), []) if step is not None else newest_valid(run)
    problems = [f"{folder.name}: {problem}" for folder, problem in skipped]
    if path is None or not path.is_dir():
        told = f" ({'; '.join(problems)})" if problems else ""
        what = f"no checkpoint of update {step}" if step is not None else "no valid checkpoint"
        raise DataError(
            f"the run in {run.path} has {what}{told}",
            f"see: drumline checkpoints {run.path}",
        )
    return path, problems


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
