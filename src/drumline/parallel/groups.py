"""Process groups: who meets where, on which device, under which limit, and who may take them down."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from drumline.errors import BackendError, GroupError, HardwareError
from drumline.launcher.world import World, detect_world
from drumline.parallel.side_channel import Alone, SideChannel, StoreChannel, twin_of

logger = logging.getLogger("drumline")

LEAVE_S = 30.0
"""How long rank 0 stays for the others at the end: they come at once unless they are busy with something else."""
READ_S = 3.0
"""The same after a failure, so that the others can read why before the store goes with rank 0."""

WRITE_S = 86400.0
"""Longest wait of one rank's writing thread for another's: a disk may be slow, and a rank that fails says so."""

WATCH_S = 0.05
"""Between two looks of the watching thread: a message a look, which costs the store 20 a second and rank."""

_meetings: Counter[tuple[str, str | None, int]] = Counter()
"""How often this process has met the others of a world: a second trainer must never read the first one's keys. A rank
that nobody came to meet has not, so that all may try again."""


@dataclass
class Groups:
    """The groups of one run in this process.

    `train` carries gradients only and can be taken down alone; the default group is left to the user's own calls, and
    stays where he made it himself.
    """

    world: World
    device: torch.device
    side: SideChannel
    train: dist.ProcessGroup | None
    owns_default: bool
    timeout_s: float = 600.0
    parts: list[dist.ProcessGroup] = field(default_factory=list)
    """Groups of some ranks only, taken down with `train`."""
    backend: str = "gloo"
    """Of the training group."""
    writer: SideChannel = field(default_factory=Alone)
    """For the threads that write checkpoints alone, with keys and a connection of its own."""
    writers: dist.ProcessGroup | None = None
    """For them too, over gloo; see `open_writers`."""
    store: dist.Store | None = None
    """Where the ranks have met, with keys of this meeting only; None where there is one rank."""
    devices: tuple[torch.device, ...] = ()
    """One a shard of this process, `device` first."""
    watch: Watch | None = None
    """Takes down the training group when a rank asks to recover, on GPUs only: on the CPU the group falls with the
    sockets of the rank that failed, and no thread could free one that is stuck in it."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self.devices = self.devices or (self.device,)

    def own_store(self, prefix: str) -> dist.Store:
        """That store with keys of one's own, on a connection of one's own: others may be in a request that waits."""
        assert self.store is not None
        return dist.PrefixStore(prefix, twin_of(self.store))

    def split(self, size: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """Two groups of this rank: those with its place in other blocks of `size` neighbours, and its own block.

        All ranks call it. `size` divides their number.
        """
        assert self.train is not None and self.world.size % size == 0
        ranks = torch.arange(self.world.size).view(-1, size)
        mine: list[dist.ProcessGroup] = []
        for rows in (ranks.T, ranks):
            for row in rows.tolist():
                # By all ranks in the same order, as new_group wants it.
                made = dist.new_group(row, timedelta(seconds=self.timeout_s), dist.get_backend(self.train))
                if self.world.rank in row:
                    mine.append(made)
        self.parts += mine
        return mine[0], mine[1]

    def open_writers(self) -> None:
        """Make the group for threads that write parts of one checkpoint; all ranks call it, before there are any."""
        if self.world.size > 1:
            self.writers = dist.new_group(timeout=timedelta(seconds=WRITE_S), backend="gloo")

    def give_up(self) -> None:
        """Take the training group down while the processes live on; any thread may call it, and more than once.

        On GPUs what is stuck in it ends with values that count for nothing. On the CPU the other ranks are free once
        nothing here refers to the group any more.
        """
        with self._lock:
            train, self.train = self.train, None
            parts, self.parts = self.parts, []
            for group in (*parts, *([train] if train is not None else [])):
                if self.device.type == "cuda":
                    dist.distributed_c10d._abort_process_group(group)
                else:
                    dist.destroy_process_group(group)

    def rebuild(self) -> None:
        """Make a new training group, by way of the default group; all ranks call it after they gave up the old one."""
        if self.world.size == 1:
            return
        self.train = dist.new_group(backend=self.backend, timeout=timedelta(seconds=self.timeout_s))
        check_group(self.train, self.world, self.device)
        self.start_watch()

    def start_watch(self) -> None:
        """Watch for a rank that asks to recover, where a device could be stuck because of it."""
        self.stop_watch()
        if self.device.type == "cuda" and isinstance(self.side, StoreChannel):
            self.watch = Watch(self.side, self.give_up)

    def stop_watch(self) -> None:
        """End the thread."""
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.stop()

    def close(self) -> None:
        """Take down what was opened here, with the other ranks; PeerFailed where one of them fails meanwhile."""
        self.side.announce("the end of its run")
        try:
            self.side.leave(LEAVE_S)
        finally:
            self._destroy()
            self._leave_store()

    def abort(self) -> None:
        """Take down what was opened here after a failure; the other ranks only get the time to read why."""
        if self.device.type == "cuda":
            self.give_up()
        self._destroy()
        try:
            self.side.leave(READ_S, failed=True)
        except dist.DistError as lost:
            logger.debug("the side channel is gone before the groups: %s", lost)
        finally:
            self._leave_store()

    def _leave_store(self) -> None:
        """Let go of the store, so that its port is free again though somebody holds this record."""
        self.side.join = None
        self.side = self.writer = Alone()
        self.store = None

    def _destroy(self) -> None:
        self.stop_watch()
        writers, self.writers = self.writers, None
        if not self.owns_default:
            if dist.is_initialized():
                self.give_up()
                if writers is not None:
                    dist.destroy_process_group(writers)
            return
        self.train, self.parts = None, []
        if dist.is_initialized():
            dist.destroy_process_group()


class Watch(threading.Thread):
    """Calls a function once when a rank asks to recover, and ends.

    The main thread may be waiting for a device that waits for another rank; what it waits in lets other threads run.
    """

    def __init__(self, side: StoreChannel, give_up: Callable[[], None], pause_s: float = WATCH_S) -> None:
        super().__init__(name="drumline-watch", daemon=True)
        self._side = side.watcher()
        self._give_up = give_up
        self._pause_s = pause_s
        self._stopped = threading.Event()
        self.start()

    def run(self) -> None:
        """Look every so often."""
        try:
            while not self._stopped.wait(self._pause_s):
                if self._side.asked() is not None:
                    self._give_up()
                    return
        except dist.DistError as lost:  # the store goes with rank 0; the main thread meets that too
            logger.debug("the watch has lost the side channel: %s", lost)

    def stop(self) -> None:
        """End it; a thread that is taking the group down is waited for."""
        self._stopped.set()
        if threading.current_thread() is not self:
            self.join()


def bind_devices(
    world: World, positions: Sequence[int] | None, num_shards: int = 1, memory_fraction: float = 1.0
) -> tuple[torch.device, ...]:
    """Take this process's devices, one a shard, before anything else can touch a GPU (pytorch #23138: all on GPU 0).

    positions: of the GPUs that this machine's processes use, in the numbering of those that CUDA shows; None: the run
    is on the CPU. The first device becomes the current one. Raises HardwareError where CUDA shows fewer GPUs.
    """
    if positions is None:
        return (torch.device("cpu"),) * num_shards
    indexes = own_positions(world, positions, num_shards)
    there = torch.cuda.device_count()
    if max(indexes) >= there:
        raise HardwareError(
            f"this process is to use GPU {max(indexes)} of those that CUDA shows, and it shows {there}",
            "look at CUDA_VISIBLE_DEVICES; drumline doctor shows what torch sees",
        )
    torch.cuda.set_device(indexes[0])
    if memory_fraction < 1:
        for index in indexes:
            torch.cuda.set_per_process_memory_fraction(memory_fraction, index)
    return tuple(torch.device("cuda", index) for index in indexes)


def own_positions(world: World, positions: Sequence[int], num_shards: int) -> tuple[int, ...]:
    """Pure: which of the machine's positions are this process's: all that its shards need, or the one of its place.

    Under SLURM's --gpus-per-task each process sees one GPU, its own, whatever its place.
    """
    if num_shards > 1:
        return tuple(positions[:num_shards])
    return (positions[world.local_rank % len(positions)],)


def started_world() -> World:
    """The world of a process group that the user has made, else the one that the launcher's variables describe."""
    if not (dist.is_available() and dist.is_initialized()):
        return detect_world()
    rank, size = dist.get_rank(), dist.get_world_size()
    # Without a launcher's word all processes count as one machine's; a World given to the trainer says otherwise.
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    return World(rank, size, local_rank, local_size, None, "group", "torch.distributed")


def open_groups(world: World, device: torch.device, backend: str, timeout_s: float) -> Groups:
    """Meet the other ranks and make the groups, on top of a default group that the user has made already.

    Raises GroupError naming the ranks that did not come, and BackendError when the backend fails its check.
    """
    if world.size == 1:
        return Groups(world, device, Alone(), None, owns_default=False)
    limit = timedelta(seconds=timeout_s)
    key = (world.run_id, world.init_method, world.size)
    generation = _meetings[key]
    owns_default = not dist.is_initialized()
    if owns_default:
        store, side = meet(world, timeout_s, generation)
        # A start that failed has counted too, maybe on some ranks only, which would then look for each other in vain.
        dist.distributed_c10d._world.group_count = 0
        both = "cpu:gloo,cuda:nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
        dist.init_process_group(
            both, store=dist.PrefixStore("groups", store), rank=world.rank, world_size=world.size, timeout=limit
        )
    else:
        check_default(world)
        store = dist.PrefixStore(f"drumline/{generation}", dist.distributed_c10d._get_default_store())
        side = StoreChannel(store, world.rank, world.size, timeout_s)
        side.exchange("start")
    _meetings[key] += 1
    groups = Groups(world, device, side, None, owns_default, timeout_s, backend=backend)
    groups.store = store
    groups.writer = StoreChannel(groups.own_store("writer"), world.rank, world.size, WRITE_S)
    try:
        groups.train = dist.new_group(backend=backend, timeout=limit)
        check_group(groups.train, world, device)
    except Exception as error:
        groups.abort()
        advice = "set parallel.backend=gloo" if backend == "nccl" else "check the network between the ranks"
        raise BackendError(
            f"{backend} failed its check at start: {error}", f"{advice}; drumline doctor shows more"
        ) from error
    groups.start_watch()
    return groups


def check_default(world: World) -> None:
    """Raise GroupError where the user's own process group is not the world that he or the launcher names."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if (rank, size) != (world.rank, world.size):
        raise GroupError(
            f"this process is rank {rank} of {size} in its process group, and rank {world.rank} of {world.size} "
            f"by {world.source}",
            "make both the same, or leave init_process_group to the trainer",
        )


def meet(world: World, timeout_s: float, generation: int) -> tuple[dist.Store, StoreChannel]:
    """Connect to the store, and wait there for every rank.

    Where rank 0 serves the store, another rank may still reach the one of the run before, which is about to go; then
    it tries again.
    """
    deadline = time.monotonic() + timeout_s
    prefix = f"{world.run_id}/{world.size}/{generation}"
    while True:
        store = dist.PrefixStore(prefix, make_store(world, timedelta(seconds=timeout_s), generation))
        side = StoreChannel(store, world.rank, world.size, timeout_s)
        try:
            side.exchange("start")
            return store, side
        except dist.DistNetworkError as error:
            if time.monotonic() > deadline:
                raise GroupError(
                    f"rank {world.rank} lost the store at {world.init_method}: {error}", "see what became of rank 0"
                ) from error


def make_store(world: World, limit: timedelta, generation: int) -> dist.Store:
    """Connect to the store that the world's init_method names, serving it on rank 0 where nobody does yet.

    generation: how often these processes have met there. Each time they do so in a file of its own: whoever leaves the
    last one removes it, while others may be in the next already.
    """
    method = world.init_method or ""
    if method.startswith("file://"):
        return dist.FileStore(method.removeprefix("file://") + (f".{generation}" if generation else ""), world.size)
    served, _, address = method.partition("://")
    host, _, port = address.rpartition(":")
    if served not in ("agent", "tcp") or not host or not port.isdigit():
        raise GroupError(
            f"{method!r} does not say where {world.size} ranks meet",
            "use tcp://host:port or file:///path on a shared file system",
        )
    serves = served == "tcp" and world.rank == 0
    try:
        return dist.TCPStore(host, int(port), None, serves, limit, wait_for_workers=False)
    except dist.DistNetworkError as error:
        if serves and "EADDRINUSE" in str(error):
            raise GroupError(
                f"port {port} is taken by another process, and rank 0 was to serve the store there",
                "set MASTER_PORT to a free port (ss -ltnp shows whose this is); drumline launch finds one by itself",
            ) from error
        role = "serve" if serves else "reach"
        fix = "choose a port that is free" if serves else "start rank 0, and check address, port and firewall"
        raise GroupError(f"rank {world.rank} could not {role} the store at {host}:{port}: {error}", fix) from error


def check_group(group: dist.ProcessGroup, world: World, device: torch.device) -> None:
    """Sum ones over all ranks and look at the value: a broken transport can also copy zeros (nccl-tests #117)."""
    ones = torch.ones(1, device=device)
    dist.all_reduce(ones, group=group)
    if float(ones) != world.size:
        raise RuntimeError(f"the sum of ones over {world.size} ranks was {float(ones)}")
