"""Machines and worlds that the tests of planning run on."""

from __future__ import annotations

from typing import Any

from drumline.config.load import config_from_mapping
from drumline.config.schema import RunConfig
from drumline.hardware.records import Gpu, Hardware, Host
from drumline.launcher.world import World


def machine(*capabilities: tuple[int, int] | None, cores: int = 16) -> Hardware:
    """A machine with one GPU for each compute capability; none: without GPU."""
    gpus = tuple(
        Gpu(f"GPU-{index:04d}", f"Card {index}", index, 80 << 30, capability)
        for index, capability in enumerate(capabilities)
    )
    return Hardware(gpus, Host(cores, 64 << 30, "here"), "nvml 1.0" if gpus else "no NVIDIA driver")


def h100s(number: int, cores: int = 16) -> Hardware:
    """A machine with H100s."""
    return machine(*[(9, 0)] * number, cores=cores)


def world(size: int, local_size: int | None = None, source: str = "torch elastic") -> World:
    """Rank 0 of a started world."""
    return World(size=size, local_size=size if local_size is None else local_size, source=source)


def run(**sections: Any) -> RunConfig:
    """A config that trains for ten updates of eight samples, unless `sections` say otherwise."""
    sections["train"] = {"global_batch": 8, "max_steps": 10, **sections.get("train", {})}
    return config_from_mapping(sections, "the test")
