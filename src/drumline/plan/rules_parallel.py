"""Which settings of `parallel` contradict the rest of a run or its machine."""

from __future__ import annotations

from collections.abc import Iterator

from drumline.config.parallel import DataParallel, DdpParallel, FsdpParallel
from drumline.config.problem import Problem
from drumline.config.schema import RunConfig
from drumline.plan.devices import Devices


def parallel_problems(config: RunConfig, devices: Devices) -> Iterator[Problem]:
    """List them."""
    parallel = config.parallel
    if isinstance(parallel, DataParallel):
        yield from _data_parallel(parallel, config, devices)
    elif isinstance(parallel, DdpParallel):
        yield from _compression(parallel)
        yield from _balance(parallel, config)
    elif isinstance(parallel, FsdpParallel):
        yield from _fsdp(parallel, devices)


def _problem(key: str, what: str, fix: str) -> Problem:
    return Problem(None, tuple(key.split(".")), what, fix)


def _data_parallel(parallel: DataParallel, config: RunConfig, devices: Devices) -> Iterator[Problem]:
    on_cpu, asked = devices.device == "cpu", config.hardware.num_processes
    if on_cpu and asked is not None and asked > 1:
        what = f"asks for {asked}, and data_parallel is one process"
        fix = f"leave it out and set parallel.replicas to {asked}, or set parallel.kind to ddp"
        yield _problem("hardware.num_processes", what, fix)
    elif devices.size > 1:
        why = devices.reasons["world_size"]
        what = f"data_parallel is one process with a replica a GPU, and there are {devices.size} processes ({why})"
        yield _problem("parallel.kind", what, "start it by python alone: python script.py; or set it to auto or ddp")
    if devices.gpus and parallel.replicas not in (None, len(devices.gpus)):
        what = f"{parallel.replicas}, and on GPUs there is one a GPU: {devices.reasons['gpus']}"
        yield _problem("parallel.replicas", what, "leave it out, and name the GPUs to use in hardware.gpus")


def _compression(parallel: DdpParallel) -> Iterator[Problem]:
    if parallel.compression == "power_sgd":
        return
    for name in ("power_sgd_rank", "power_sgd_start"):
        value = getattr(parallel, name)
        if value != DdpParallel.model_fields[name].default:
            what = f"{value}, and parallel.compression is {parallel.compression}"
            yield _problem(f"parallel.{name}", what, "set parallel.compression to power_sgd, or leave it out")


def _balance(parallel: DdpParallel, config: RunConfig) -> Iterator[Problem]:
    """Shares by speed need rows that can be read at any place, and a batch that may be divided unevenly."""
    if parallel.balance == "equal":
        return
    fix = "set it to equal, or "
    if config.train.batch_size_per_gpu is not None:
        what = "measured, and train.batch_size_per_gpu gives each GPU the same number of samples"
        yield _problem("parallel.balance", what, fix + "say train.global_batch instead")
    if getattr(config.data, "streaming", False):
        what = "measured, and data.streaming reads rows as they come: they cannot be shared out by speed"
        yield _problem("parallel.balance", what, fix + "data.streaming to false")
    if parallel.sync_batch_norm:
        what = "measured, and under sync_batch_norm each forward pass waits for the slowest rank"
        yield _problem("parallel.balance", what, fix + "parallel.sync_batch_norm to false")
    if config.train.deterministic:
        what = "measured, and train.deterministic wants equal bits: shares follow times that differ from start to start"
        yield _problem("parallel.balance", what, fix + "train.deterministic to false")


def _fsdp(parallel: FsdpParallel, devices: Devices) -> Iterator[Problem]:
    size, shard = devices.size, parallel.shard_size
    if shard is not None and size > 1 and size % shard:
        what = f"{shard} does not divide {size} processes ({devices.reasons['world_size']})"
        divisors = [number for number in range(2, size + 1) if size % number == 0]
        near = min(divisors, key=lambda number: abs(number - shard))
        yield _problem("parallel.shard_size", what, f"set it to a divisor, such as {near}, or leave it out")
    if parallel.offload and devices.device == "cpu":
        what = f"keeps shards in the host's memory, and the run is on the CPU: {devices.reasons['device']}"
        yield _problem("parallel.offload", what, "leave it out")
