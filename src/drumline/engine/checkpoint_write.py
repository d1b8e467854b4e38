"""One save on its way to the disk: what a rank writes, agrees on with the others, and puts in its place."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, TypeVar

import torch
import torch.distributed as dist

from drumline.config.schema import CheckpointConfig
from drumline.engine.checkpoint_folder import Draft, remove
from drumline.engine.checkpoint_retention import to_prune
from drumline.manifest import Entry, Manifest, check, checkpoints_of, digest
from drumline.parallel.parts import tensors_in
from drumline.parallel.side_channel import SideChannel
from drumline.rundir import LineWriter, RunDir, write_atomic

logger = logging.getLogger("drumline")

T = TypeVar("T")

STATE = "state.pt"
"""All of a whole checkpoint; of a sharded one what are no tensors, or tensors of one number."""

ROOM_FACTOR, ROOM_BYTES = 1.01, 2**20
"""A checkpoint is so much larger than its tensors, at most: a rule of thumb."""


class SaveFailed(Exception):
    """A save that came to nothing, on this rank or on another."""


@dataclass(frozen=True)
class Site:
    """Where this rank stands when checkpoints are written."""

    rank: int
    nodes: tuple[int, ...]
    """The file system of each rank's run directory: the lowest rank that sees it."""
    meeting: SideChannel
    """Of the writing threads of all ranks; of this one alone where it writes alone."""
    group: dist.ProcessGroup | None
    """The same for DCP; None where there is only one process."""

    @property
    def node(self) -> int:
        """The file system of this rank."""
        return self.nodes[self.rank]

    @property
    def commits(self) -> bool:
        """Whether this rank makes, seals and places folders on its file system."""
        return self.node == self.rank


@dataclass
class Save:
    """One save, as far as this rank takes part in it. `write` is for one thread at a time."""

    site: Site
    directory: RunDir
    config: CheckpointConfig
    token: str
    manifest: Manifest
    """Without its files."""
    state: Any
    """Of this rank, on the host; None where another rank has all that it could write."""
    problem: str | None = None
    """Why it came to nothing; equal on all ranks that took part."""

    @property
    def path(self) -> Path:
        """Where it goes."""
        return self.directory.checkpoint_of(self.manifest.step)

    def write(self) -> None:
        """Write, agree, and put it in its place; then remove what need not be kept. A failure goes into `problem`."""
        draft = Draft(self.path, self.token)
        try:
            try:
                self._write(draft)
            except BaseException:
                if self.site.commits:
                    draft.discard()
                raise
            if self.site.commits:
                self._prune()
        except SaveFailed as failed:
            self.problem = str(failed)
        except Exception as error:  # it would be lost with the thread: whoever waits for it tells of it
            self.problem = reason_of(error)
        else:
            if self.site.rank == 0:
                note(self.directory, "checkpoint", step=self.manifest.step)
        finally:
            self.state = None

    def _write(self, draft: Draft) -> None:
        site = self.site
        sizes = self._together("size", lambda: bytes_of(self.state, replicated=site.commits))
        self._together("room", lambda: self._open(draft, sizes) if site.commits else None)
        found = self._together("files", lambda: self._write_files(draft.folder))
        files = tuple(Entry(*entry) for entries in found for entry in entries)
        manifest = replace(self.manifest, files=files, node=site.node)
        self._together("seal", lambda: draft.seal(manifest) if site.commits else None)
        self._together("place", lambda: draft.commit() if site.commits else None)

    def _open(self, draft: Draft, sizes: Sequence[int]) -> None:
        """Make the folder, where there is room for what all ranks write on this file system."""
        draft.open()
        needed = sum(size for node, size in zip(self.site.nodes, sizes, strict=False) if node == self.site.node)
        needed = int(needed * ROOM_FACTOR) + ROOM_BYTES
        free = shutil.disk_usage(draft.folder).free
        if free < needed:
            raise OSError(f"it takes {needed / 2**30:.2f} GiB, and {free / 2**30:.2f} GiB are free on that disk")

    def _write_files(self, folder: Path) -> list[Entry]:
        """What this rank has to write, on the disk."""
        if self.state is None:
            return []
        plain, names = self.state, []
        if self.manifest.format == "sharded":
            from drumline.engine.checkpoint_shards import METADATA, files_of, save_parts, split

            plain, parts = split(self.state)
            save_parts(folder, parts, self.site.group)
            if len(set(self.site.nodes)) > 1:
                self._share(folder / METADATA)
            names = files_of(folder, self.site.rank, committer=self.site.commits)
        entries = [Entry(name, self.site.node, (folder / name).stat().st_size, digest(folder / name)) for name in names]
        return [*entries, write_state(folder / STATE, plain, self.site.node)] if self.site.commits else entries

    def _share(self, file: Path) -> None:
        """Copy what rank 0 has written for all to every other file system."""
        found = [file.read_bytes() if self.site.rank == 0 else b""]
        dist.broadcast_object_list(found, 0, group=self.site.group)
        if self.site.commits and self.site.rank != 0:
            write_atomic(file, found[0])

    def _prune(self) -> None:
        """Remove what need not be kept; a failure is only told: the new one is in its place."""
        now, config = self.manifest.step, self.config
        listed = [each for each in checkpoints_of(self.directory) if each.step <= now]
        whole = {each.step: each.metrics.get(config.metric) for each in listed if not check(each.path, contents=False)}
        doomed = set(to_prune(whole, config.keep, config.keep_best, config.mode))
        oldest = min(whole.keys() - doomed, default=0)
        if config.keep is not None:  # what is damaged stays while something older does
            doomed |= {each.step for each in listed if each.step not in whole and each.step < oldest}
        for step in sorted(doomed):
            try:
                remove(self.directory.checkpoint_of(step))
            except OSError as error:
                logger.warning("the checkpoint of update %d could not be removed: %s", step, error)

    def _together(self, tag: str, action: Callable[[], T]) -> list[T]:
        """What the action comes to on every rank; SaveFailed on all where it fails on one."""
        problem, found = None, None
        try:
            found = action()
        except Exception as error:
            problem = reason_of(error)
        answers = self.site.meeting.exchange(tag, [problem, found])
        for failed, _ in answers:
            if failed is not None:
                raise SaveFailed(failed)
        return [found for _, found in answers]


def reason_of(error: BaseException) -> str:
    """What the operating system said, where it did: on a full disk torch's writer hides it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__
    return str(cause or error) or type(error).__name__


def note(directory: RunDir, event: str, **facts: Any) -> None:
    """Write a line to events.jsonl, also while a run is about to end. A full disk, of which it tells, is no failure."""
    try:
        lines = LineWriter(directory.events)
        try:
            lines.write({"event": event, "rank": 0, **facts})
        finally:
            lines.close()
    except OSError as error:
        logger.warning("%s could not be noted in %s: %s", event, directory.events, error)


def bytes_of(state: Any, *, replicated: bool) -> int:
    """Of this rank's parts, and of whole tensors where those are to be counted."""
    return sum(tensor.nbytes for tensor, is_part in tensors_in(state) if is_part or replicated)


class Hashed:
    """A file that is written from its beginning to its end, and its checksum."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.sha256 = hashlib.sha256()
        self.size = 0

    def write(self, data: Any) -> int:
        """Write all of it."""
        self.sha256.update(data)
        self.size += len(data)
        return self._stream.write(data)

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._stream.flush()


def write_state(file: Path, state: Any, node: int) -> Entry:
    """Write nested state to the disk with torch.save."""
    with file.open("wb") as stream:
        hashed = Hashed(stream)
        torch.save(state, hashed)  # type: ignore[arg-type]  # it writes and flushes, no more
        hashed.flush()
        os.fsync(stream.fileno())
    return Entry(file.name, node, hashed.size, hashed.sha256.hexdigest())
