"""Chooses device, GPUs and number of processes for a run, and says why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from drumline.config.parallel import DataParallel
from drumline.config.problem import Problem
from drumline.config.schema import HardwareConfig, RunConfig
from drumline.errors import HardwareError
from drumline.hardware.inventory import named_gpus
from drumline.hardware.records import Gpu, Hardware


class StartedWorld(Protocol):
    """What planning needs of a launcher's world; `launcher.world.World` has it."""

    @property
    def size(self) -> int:
        """Processes over all machines."""

    @property
    def local_size(self) -> int:
        """Processes on this machine."""

    @property
    def source(self) -> str:
        """Who started them; 'python' for nobody."""


@dataclass(frozen=True)
class Devices:
    """The part of a plan that says where the processes run."""

    device: str
    gpus: tuple[Gpu, ...]
    """One a local process, under data_parallel all of them one process's; empty on CPU."""
    size: int
    local_size: int
    num_shards: int
    """Over all processes."""
    reasons: dict[str, str]


def choose_devices(config: RunConfig, hardware: Hardware, world: StartedWorld | None) -> tuple[Devices, list[Problem]]:
    """Choose, and list what keeps the choice from working. Without a world: what a launcher should start."""
    asked = config.hardware
    device, why_device = _device(asked, hardware)
    gpus, problems = _gpus(asked, hardware, device)
    if device == "cuda" and not problems:
        problems = _number_problems(gpus, world)
    size, local_size, why_size = _size(config, gpus, world)
    replicated = isinstance(config.parallel, DataParallel)
    used = gpus if replicated else gpus[:local_size]
    num_shards, why_shards = _shards(config, used, size)
    names = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in used)
    each = "a replica each" if replicated else "one a process"
    reasons = {
        "device": why_device,
        "gpus": f"{names}: {each}, by UUID{_left_out(hardware)}" if used else "the CPU needs none",
        "world_size": why_size + ("" if replicated else _idle_gpus(hardware, used, world)),
        "num_shards": why_shards,
    }
    return Devices(device, used, size, local_size, num_shards, reasons), problems


def _problem(field: str, what: str, fix: str) -> Problem:
    return Problem(None, ("hardware", field), what, fix)


def _device(asked: HardwareConfig, hardware: Hardware) -> tuple[str, str]:
    if asked.device != "auto":
        return asked.device, f"hardware.device asks for {asked.device}"
    if hardware.gpus:
        return "cuda", f"{count(len(hardware.gpus), 'GPU')} visible ({hardware.gpu_source})"
    return "cpu", f"no GPU is visible: {hardware.gpu_source}"


def _gpus(asked: HardwareConfig, hardware: Hardware, device: str) -> tuple[tuple[Gpu, ...], list[Problem]]:
    if asked.device == "cuda" and not hardware.gpus:
        what = f"asks for a GPU, and this machine shows none ({hardware.gpu_source})"
        return (), [_problem("device", what, "set hardware.device to auto or cpu, or see drumline doctor")]
    if asked.device == "cpu" and asked.gpus is not None:
        return (), [_problem("gpus", "names GPUs, and hardware.device asks for cpu", "leave one of the two out")]
    if asked.count is not None and device == "cpu":
        why = "hardware.device asks for cpu" if asked.device == "cpu" else f"no GPU is visible ({hardware.gpu_source})"
        return (), [_problem("count", f"asks for GPUs, and {why}", "leave one of the two out, or see drumline doctor")]
    try:
        if device == "cuda" or asked.gpus is not None:
            return named_gpus(hardware, asked.gpus, asked.exclude, asked.count), []
    except HardwareError as error:
        return (), [Problem(None, (), error.problem, error.fix)]
    return (), []


def _left_out(hardware: Hardware) -> str:
    return f"; left out: {'; '.join(hardware.left_out)}" if hardware.left_out else ""


def _number_problems(gpus: tuple[Gpu, ...], world: StartedWorld | None) -> list[Problem]:
    if world is None:
        return []
    there = f"there is {len(gpus)}" if len(gpus) == 1 else f"there are {len(gpus)}"
    # Under SLURM's --gpus-per-task each process sees only the GPU that is its own.
    if world.local_size <= len(gpus) or (world.source == "slurm" and len(gpus) == 1):
        return []
    what = f"{world.source} started {world.local_size} processes on this machine, each needs a GPU, and {there}"
    return [Problem(None, (), what, f"start {len(gpus)} or less, or set hardware.device to cpu")]


def _size(config: RunConfig, gpus: tuple[Gpu, ...], world: StartedWorld | None) -> tuple[int, int, str]:
    asked = config.hardware.num_processes
    if world is not None:
        if world.size == 1:
            return 1, 1, f"one process, started by {world.source}"
        return world.size, world.local_size, f"{world.source} started {world.size}, {world.local_size} on this machine"
    if asked is not None and not gpus:
        return asked, asked, f"hardware.num_processes asks for {asked}"
    if config.parallel.kind in ("single", "data_parallel"):
        return 1, 1, f"parallel.kind is {config.parallel.kind}: one process"
    if gpus:
        return len(gpus), len(gpus), f"one process a GPU, {count(len(gpus), 'GPU')}"
    return 1, 1, "one process, as hardware.num_processes does not ask for more on the CPU"


def _shards(config: RunConfig, used: tuple[Gpu, ...], size: int) -> tuple[int, str]:
    if not isinstance(config.parallel, DataParallel):
        return size, "one a process"
    if used:
        return len(used), f"a replica a GPU, {count(len(used), 'GPU')}, all in one process"
    replicas = config.parallel.replicas
    if replicas is None:
        return 1, "one replica, as parallel.replicas does not ask for more on the CPU"
    return replicas, f"parallel.replicas asks for {replicas}, which take turns on the CPU"


def _idle_gpus(hardware: Hardware, used: tuple[Gpu, ...], world: StartedWorld | None) -> str:
    if world is None or world.size > 1 or world.source != "python" or len(used) != 1 or len(hardware.gpus) == 1:
        return ""
    return f", on 1 of {len(hardware.gpus)} GPUs; to use all: drumline launch script.py"


def count(number: int, noun: str) -> str:
    """Write a number with its noun: '1 GPU', '2 GPUs', '2 passes'."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"
