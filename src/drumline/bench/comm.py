"""`drumline bench comm`: collectives over message sizes; every rank runs this."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from drumline import __version__
from drumline.config.schema import RunConfig
from drumline.engine.timing import DeviceClock
from drumline.errors import HardwareError
from drumline.hardware.inventory import detect
from drumline.hardware.state import read_state
from drumline.launcher.start import choose_workers
from drumline.launcher.world import detect_world
from drumline.parallel.groups import Groups, bind_devices, open_groups
from drumline.track.collectives import bandwidths
from drumline.track.samples import measured

WARM_UP = 3
"""Calls before the timed ones: connections and buffers are made by the first."""

CALLS_S = 0.02
"""What one timed sample should take at least: so many calls that their start does not count."""

MOST_CALLS = 50


class Collective(NamedTuple):
    """One kind of collective on a buffer of a given size."""

    name: str
    call: Callable[[], Any]


def bench_comm(config: RunConfig, sizes: Sequence[int], samples: int) -> dict[str, Any]:
    """Time all-reduce, all-gather, reduce-scatter and broadcast on messages of these bytes, alike on all ranks.

    Raises HardwareError with one process, which has nobody to talk to.
    """
    world = detect_world()
    if world.size == 1:
        raise HardwareError(
            "one process has nobody to communicate with",
            "use a machine with several GPUs, or --set hardware.device=cpu --set hardware.num_processes=2",
        )
    gpus = choose_workers(config.hardware, detect()).gpus
    device, *_ = bind_devices(world, range(len(gpus)) if gpus else None)
    backend = config.parallel.backend
    if backend == "auto":
        backend = "nccl" if gpus else "gloo"
    groups = open_groups(world, device, backend, config.parallel.timeout_s)
    try:
        rows = [row for size in sizes for row in bench_size(groups, size, samples)]
        wrong = wrong_sums(groups, max(sizes))
        state = read_state(gpus).to_json()
    except BaseException:
        groups.abort()
        raise
    groups.close()
    return {
        "world_size": world.size,
        "backend": backend,
        "device": torch.cuda.get_device_name(device) if gpus else "cpu",
        "versions": {"drumline": __version__, "torch": torch.__version__, "cuda": torch.version.cuda},
        "rows": rows,
        "wrong_sums": wrong,
        "machine": {"under_load": state},
    }


def bench_size(groups: Groups, size: int, samples: int) -> list[dict[str, Any]]:
    """One row a collective at this message size."""
    world = groups.world.size
    rows = []
    for collective in collectives(groups, size):
        seconds = time_collective(groups, collective, samples)
        algorithm, bus = bandwidths(collective.name, size, statistics.median(seconds), world)
        facts = {"collective": collective.name, "bytes": size, "seconds": measured(seconds)}
        rows.append({**facts, "algorithm_bytes_per_s": algorithm, "bus_bytes_per_s": bus})
    return rows


def wrong_sums(groups: Groups, size: int) -> int:
    """How many elements of an all-reduced message, over all ranks, are not the sum of what the ranks gave."""
    world = groups.world
    numbers = torch.arange(max(1, size // 4), device=groups.device) % 251  # whole numbers: their sums are exact
    message = (numbers + world.rank).float()
    dist.all_reduce(message, group=groups.train)
    sums = numbers * world.size + world.size * (world.size - 1) // 2
    return sum(groups.side.exchange("sums", int((message != sums).sum())))


def collectives(groups: Groups, size: int) -> list[Collective]:
    """All of them on float32 messages, of at least one element a rank.

    As in nccl-tests, the size is that of the whole: of what a gather ends with and a scatter begins with.
    """
    group, world = groups.train, groups.world.size
    share = max(1, size // 4 // world)
    whole = torch.zeros(share * world, device=groups.device)
    part = torch.zeros(share, device=groups.device)
    # torch 2.13 has new names for these two, and warns of the old ones.
    gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

    def reduce() -> Tensor:
        dist.all_reduce(whole, group=group)
        return whole

    return [
        Collective("all_reduce", reduce),
        Collective("all_gather", lambda: gather(whole, part, group=group)),
        Collective("reduce_scatter", lambda: scatter(part, whole, group=group)),
        Collective("broadcast", lambda: dist.broadcast(whole, 0, group=group)),
    ]


def time_collective(groups: Groups, collective: Collective, samples: int) -> list[float]:
    """Seconds a call of each sample, as long as on the rank where it took longest."""
    clock, side = DeviceClock(groups.device), groups.side

    def run(calls: int) -> float:
        clock.drain()
        side.exchange("begin")  # all ranks begin together
        first = clock.mark()
        for _ in range(calls):
            collective.call()
        last = clock.mark()
        clock.drain()
        return clock.seconds(first, last) / calls

    run(WARM_UP)
    once = statistics.median(side.exchange("one call", run(1)))
    calls = min(MOST_CALLS, max(1, round(CALLS_S / max(once, 1e-9))))
    mine = [run(calls) for _ in range(samples)]
    return [max(each) for each in zip(*side.exchange("calls", mine), strict=True)]
