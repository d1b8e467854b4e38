"""Process groups: who meets where, on which device, under which limit, and who may take them down."""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from drumline.errors import BackendError, GroupError
from drumline.launcher.world import World
from drumline.parallel.side_channel import Alone, SideChannel, StoreChannel

logger = logging.getLogger("drumline")

_generations: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
"""Groups that this process has opened in a world: a second trainer must never read the first one's keys."""


@dataclass
class Groups:
    """The groups of one run in this process.

    `train` carries gradients only and can be aborted alone; the default group is left to the user's own calls.
    """

    world: World
    device: torch.device
    side: SideChannel
    train: dist.ProcessGroup | None
    owned: bool
    _store: dist.Store | None = None

    def close(self) -> None:
        """Take down what was opened here; a group that the user made stays.

        Rank 0 leaves last, since it may serve the store.
        """
        if not self.owned or self.train is None:
            return
        if self._store is not None:
            self._store.set(f"bye/{self.world.rank}", "")
            if self.world.rank == 0:
                self._store.wait([f"bye/{rank}" for rank in range(self.world.size)], timedelta(seconds=30))
        self._destroy()

    def abort(self) -> None:
        """Take down what was opened here after a failure, without waiting for anybody."""
        if not self.owned or self.train is None:
            return
        if self.device.type == "cuda":
            dist.distributed_c10d._abort_process_group(self.train)
        self._destroy()

    def _destroy(self) -> None:
        self.train = None
        if dist.is_initialized():
            dist.destroy_process_group()


def bind_device(world: World, device_type: str, memory_fraction: float = 1.0) -> torch.device:
    """Take this process's device, before anything else can touch a GPU (every rank on GPU 0: pytorch #23138)."""
    if device_type == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", world.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    if memory_fraction < 1:
        torch.cuda.set_per_process_memory_fraction(memory_fraction, device)
    return device


def open_groups(world: World, device: torch.device, backend: str, timeout_s: float) -> Groups:
    """Meet the other ranks and make the groups; a group that the user has made already is used as it is.

    Raises GroupError naming the ranks that did not come, and BackendError when the backend fails its check.
    """
    if world.size == 1:
        return Groups(world, device, Alone(), None, owned=False)
    generation = next(_generations[world.run_id])
    limit = timedelta(seconds=timeout_s)
    if dist.is_initialized():
        default = dist.distributed_c10d._get_default_store()
        store = dist.PrefixStore(f"drumline/{generation}", default)
        side = StoreChannel(store, world.rank, world.size, timeout_s)
        return Groups(world, device, side, dist.group.WORLD, owned=False)
    store = dist.PrefixStore(f"{world.run_id}/{generation}", make_store(world, limit))
    side = StoreChannel(store, world.rank, world.size, timeout_s)
    side.exchange("start")
    both = "cpu:gloo,cuda:nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
    dist.init_process_group(
        both, store=dist.PrefixStore("groups", store), rank=world.rank, world_size=world.size, timeout=limit
    )
    try:
        train = dist.new_group(backend=backend, timeout=limit)
        check_group(train, world, device)
    except Exception as error:
        dist.destroy_process_group()
        advice = "set parallel.backend=gloo" if backend == "nccl" else "check the network between the ranks"
        raise BackendError(
            f"{backend} failed its check at start: {error}", f"{advice}; drumline doctor shows more"
        ) from error
    return Groups(world, device, side, train, owned=True, _store=store)


def make_store(world: World, limit: timedelta) -> dist.Store:
    """Connect to the store that the world's init_method names, serving it on rank 0 where nobody does yet."""
    method = world.init_method or ""
    if method.startswith("file://"):
        return dist.FileStore(method.removeprefix("file://"), world.size)
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
        role = "serve" if serves else "reach"
        fix = "choose a port that is free" if serves else "start rank 0, and check address, port and firewall"
        raise GroupError(f"rank {world.rank} could not {role} the store at {host}:{port}: {error}", fix) from error


def check_group(group: dist.ProcessGroup, world: World, device: torch.device) -> None:
    """Sum ones over all ranks and look at the value: a broken transport can also copy zeros (nccl-tests #117)."""
    ones = torch.ones(1, device=device)
    dist.all_reduce(ones, group=group)
    if float(ones) != world.size:
        raise RuntimeError(f"the sum of ones over {world.size} ranks was {float(ones)}")
