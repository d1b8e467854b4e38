"""The folder of one checkpoint on one file system: made beside its place, and put there whole."""

from __future__ import annotations

import re
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from drumline.errors import DataError
from drumline.manifest import MANIFEST, Manifest, check
from drumline.rundir import sync_directory, write_json

if TYPE_CHECKING:
    from drumline.parallel.groups import Groups

_LEFT = re.compile(r"\.(step_\d+)\.[0-9a-f]+\.(tmp|old)")
"""Names of what a kill may leave: a folder that is being written or removed, an earlier one that made room."""


def new_token() -> str:
    """What tells the temporary folders of one save from those of every other."""
    return secrets.token_hex(4)


class Draft:
    """A checkpoint that is being written. Nothing of it is in its place before `commit`."""

    def __init__(self, path: Path, token: str) -> None:
        self._path = path
        self._token = token
        self.folder = path.with_name(f".{path.name}.{token}.tmp")
        """Where its files are written."""
        self._earlier = path.with_name(f".{path.name}.{token}.old")

    def open(self) -> None:
        """Make the folder, for its owner only."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder.mkdir(mode=0o700)

    def seal(self, manifest: Manifest) -> None:
        """Write the manifest, after everything else is on the disk."""
        sync_directory(self.folder)
        write_json(self.folder / MANIFEST, manifest.to_json())

    def commit(self) -> None:
        """Put it in its place; an earlier one of the same step makes room, and is removed after."""
        if self._path.exists():
            self._path.replace(self._earlier)
        self.folder.replace(self._path)
        sync_directory(self._path.parent)
        if self._earlier.exists():
            shutil.rmtree(self._earlier)

    def discard(self) -> None:
        """Remove what is written so far, and put an earlier one back."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._earlier.exists() and not self._path.exists():
            self._earlier.replace(self._path)


def file_systems(groups: Groups, directory: Path) -> tuple[int, ...]:
    """For each rank the lowest rank that sees the same folder under this name; all ranks call it.

    Raises DataError on all ranks where one of them can write nothing there.
    """
    world = groups.world
    if world.size == 1:
        return (0,)
    (token, *_) = groups.side.exchange("file systems", new_token())
    marks = [directory / f".rank_{rank}.{token}.tmp" for rank in range(world.size)]
    problem = None
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        marks[world.rank].touch()
    except OSError as error:
        problem = f"rank {world.rank} cannot write into the run directory {directory}: {error}"
    problems = groups.side.exchange("marks", problem)
    if found := [each for each in problems if each is not None]:
        raise DataError(found[0], "free space, or choose another run_dir")
    seen = min(rank for rank, mark in enumerate(marks) if mark.exists())
    nodes = groups.side.exchange("seen", seen)
    marks[world.rank].unlink()
    return tuple(nodes)


def remove(path: Path) -> None:
    """Remove a checkpoint so that a kill in between leaves none that looks whole."""
    doomed = path.with_name(f".{path.name}.{new_token()}.tmp")
    path.replace(doomed)
    shutil.rmtree(doomed)


def sweep(folder: Path) -> list[str]:
    """Remove what killed attempts left among the checkpoints; returns the names.

    What made room for a newer one that never came goes back to its place. Nobody may be saving there.
    """
    swept = []
    for path in sorted(folder.glob(".step_*")):
        if match := _LEFT.fullmatch(path.name):
            place = folder / match[1]
            if match[2] == "old" and not place.exists() and not check(path, contents=False):
                path.replace(place)
                continue
            shutil.rmtree(path)
            swept.append(path.name)
    return swept
