"""Whether loader processes find room on this machine, and what to do where they do not: a pure decision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Sharing = Literal["file_descriptor", "file_system"]
"""How torch hands tensors from process to process: by an open file each, or by a name that is opened and closed."""

MIB, GIB = 1 << 20, 1 << 30
PAGE_BYTES = 4096
"""Every shared tensor and every semaphore takes whole pages of /dev/shm."""
LOADER_SEMAPHORES, WORKER_SEMAPHORES = 8, 3
"""Pages that torch's queues and events take, of a loader and of each of its processes (counted, torch 2.13)."""
SHARE = 0.75
"""Part of the free shared memory that is counted on: other batches are larger than the one that was measured."""
SPARE_FILES = 64
"""Handles left to logs, checkpoints, sockets and the user's own files."""
WORKER_FILES = 4
"""Pipes and sentinel of a loader process."""
USUAL_FILES = 65_536
"""A soft limit that nobody's loaders reach, where the hard one is higher still."""


@dataclass(frozen=True)
class Load:
    """One loader of a rank: what was asked for, and what one of its batches takes."""

    num_workers: int
    prefetch_factor: int
    batch_bytes: int
    """Of shared memory, in whole pages."""
    num_tensors: int


@dataclass(frozen=True)
class Room:
    """What there is for the loaders of all ranks on this machine."""

    num_ranks: int
    shared_bytes: int | None
    """Free in /dev/shm; None: there is no such limit."""
    open_files: int
    """Files that this process has open now; its loader processes inherit them."""
    soft: int | None
    hard: int | None
    """Limits on open files of one process; None for no limit."""


@dataclass(frozen=True)
class Fit:
    """How the loaders of a rank are run; numbers are by loader, in the order of the loads."""

    num_workers: tuple[int, ...]
    prefetch_factor: tuple[int, ...]
    sharing: Sharing
    raised: int | None
    """Soft limit on open files to be set; None leaves it as it is."""
    message: str | None
    """What is short, by how much, what was done, and what to do about it; None where all is as asked."""


def fit(loads: Sequence[Load], room: Room) -> Fit:
    """Pure: fit a rank's loaders into what the machine has.

    For file handles the soft limit is raised as far as it goes, then tensors are shared by name. Then fewer batches are
    kept ready, then there are fewer processes, at last none. The number of rows in a batch is never touched.
    """
    if not any(load.num_workers for load in loads):
        return as_asked(loads)
    wanted = needed_files(loads, room, "file_descriptor")
    raised: int | None = None
    limit = room.soft
    if limit is not None and wanted > limit:
        most = max(wanted, USUAL_FILES)
        limit = most if room.hard is None else min(most, room.hard)
        raised = limit if limit > (room.soft or 0) else None
    sharing: Sharing = "file_descriptor" if limit is None or wanted <= limit else "file_system"
    found = next(each for each in smaller(loads) if fits(each, room, sharing, limit))
    if fits(found, room, "file_descriptor", limit):  # with less memory there are fewer tensors on their way too
        sharing = "file_descriptor"
    done = [f"the limit on open files is raised to {raised}"] if raised is not None else []
    done += ["tensors are shared by name"] if sharing == "file_system" else []
    done += [f"going on with {described(found)}"] if found != list(loads) else []
    message = f"{'; '.join(short(loads, room))}: {', '.join(done)}" if done else None
    return replace(as_asked(found), sharing=sharing, raised=raised, message=message)


def as_asked(loads: Sequence[Load]) -> Fit:
    """Nothing is changed."""
    return Fit(
        tuple(load.num_workers for load in loads),
        tuple(load.prefetch_factor for load in loads),
        "file_descriptor",
        None,
        None,
    )


def smaller(loads: Sequence[Load]) -> Iterator[list[Load]]:
    """What was asked for, then less and less: half the batches at a time, then a process at a time, down to none."""
    prefetch = max((load.prefetch_factor for load in loads), default=1)
    workers = max((load.num_workers for load in loads), default=0)
    while prefetch > 1:
        yield capped(loads, workers, prefetch)
        prefetch //= 2
    for fewer in range(workers, -1, -1):
        yield capped(loads, fewer, 1)


def capped(loads: Sequence[Load], workers: int, prefetch: int) -> list[Load]:
    """The loads with at most so many processes, and batches kept ready by each."""
    return [
        replace(load, num_workers=min(load.num_workers, workers), prefetch_factor=min(load.prefetch_factor, prefetch))
        for load in loads
    ]


def fits(loads: Sequence[Load], room: Room, sharing: Sharing, limit: int | None) -> bool:
    """Whether shared memory and file handles suffice; a rank without loader processes needs neither."""
    if not any(load.num_workers for load in loads):
        return True
    if not fit_memory(loads, room):
        return False
    return limit is None or needed_files(loads, room, sharing) <= limit


def fit_memory(loads: Sequence[Load], room: Room) -> bool:
    """Whether shared memory suffices."""
    return room.shared_bytes is None or needed_bytes(loads, room) <= SHARE * room.shared_bytes


def needed_bytes(loads: Sequence[Load], room: Room) -> int:
    """Shared memory of all ranks' loaders: batches kept ready, the one that was handed over, and semaphores."""
    total = 0
    for load in loads:
        if load.num_workers:
            semaphores = LOADER_SEMAPHORES + WORKER_SEMAPHORES * load.num_workers
            batches = load.num_workers * load.prefetch_factor + 1
            total += batches * load.batch_bytes + semaphores * PAGE_BYTES
    return room.num_ranks * total


def needed_files(loads: Sequence[Load], room: Room, sharing: Sharing) -> int:
    """File handles of the busiest process: what is open now, pipes, and a handle a tensor on its way."""
    total = room.open_files + SPARE_FILES
    for load in loads:
        if load.num_workers:
            total += WORKER_FILES * load.num_workers
            if sharing == "file_descriptor":
                # In the rank's own process those of all batches that are ready; one batch more while it is being sent.
                total += load.num_tensors * (load.num_workers * load.prefetch_factor + 1)
    return total


def short(loads: Sequence[Load], room: Room) -> Iterator[str]:
    """One clause for each thing that does not suffice for what was asked: the numbers, and the exact advice."""
    asked = f"{room.num_ranks} rank{'s' * (room.num_ranks > 1)} x {described(loads)}"
    needed = needed_bytes(loads, room)
    if room.shared_bytes is not None and not fit_memory(loads, room):
        yield (
            f"{asked}, with batches of {size(max(load.batch_bytes for load in loads))}, need {size(needed)} of shared "
            f"memory, and /dev/shm has {size(room.shared_bytes)} free ({shm_advice(needed)})"
        )
    files = needed_files(loads, room, "file_descriptor")
    if room.soft is not None and files > room.soft:
        advice = f" ({FILES_ADVICE})" if room.hard is not None and files > room.hard else ""
        yield (
            f"{asked}, with {max(load.num_tensors for load in loads)} tensors a batch, need {files} open files in one "
            f"process, and the limit is {room.soft}{advice}"
        )


FILES_ADVICE = "docker run --ulimit nofile=65536, or raise nofile in /etc/security/limits.conf"


def shm_advice(needed: int) -> str:
    """What to do for shared memory of so many bytes."""
    gib = max(1, -(-needed * 2 // GIB))
    return f"docker run --shm-size={gib}g, or --ipc=host; loader.num_workers=0 needs none"


def described(loads: Sequence[Load]) -> str:
    """The loaders in words: loader.num_workers and loader.prefetch_factor of each, once where they are equal."""
    texts = [f"num_workers={load.num_workers}, prefetch_factor={load.prefetch_factor}" for load in loads]
    if not any(load.num_workers for load in loads):
        return "num_workers=0"
    return texts[0] if len(set(texts)) == 1 else f"({'; evaluation '.join(texts)})"


def size(num_bytes: int) -> str:
    """Bytes for people."""
    if num_bytes >= GIB:
        return f"{num_bytes / GIB:.1f} GiB"
    return f"{num_bytes / MIB:.1f} MiB" if num_bytes >= MIB else f"{num_bytes / 1024:.0f} KiB"
