"""What a process's devices hold at most while something is tried out on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from drumline.config.schema import RunConfig
from drumline.engine.batch_size import Peak
from drumline.parallel.groups import Groups


class Memory(Protocol):
    """What the preflight measures by. Tests on the CPU simulate one."""

    def begin(self) -> None:
        """Forget the peak so far, and give back what is held without use."""
        ...

    def peak(self) -> Peak:
        """Since `begin`, of the device that came closest to its limit."""
        ...


class GpuMemory:
    """Of GPUs, as torch's allocator and the driver count it."""

    def __init__(self, devices: Sequence[torch.device], target: float, fraction: float) -> None:
        """target: share of a GPU's memory that may be filled; fraction: share that this process may allocate."""
        self._devices = devices
        self._target = target
        self._fraction = fraction

    def begin(self) -> None:
        """Forget the peak; what the allocator holds from now on is in use, or split up."""
        torch.cuda.empty_cache()
        for device in self._devices:
            torch.cuda.reset_peak_memory_stats(device)

    def peak(self) -> Peak:
        """Held by the allocator at most, and by all else on the GPU: contexts, communication, other processes."""
        return max(map(self._peak_of, self._devices), key=lambda peak: peak.used / peak.limit)

    def _peak_of(self, device: torch.device) -> Peak:
        free, whole = torch.cuda.mem_get_info(device)
        held = torch.cuda.max_memory_reserved(device)
        outside = whole - free - torch.cuda.memory_reserved(device)
        return Peak(max(held + outside, held / self._fraction), whole * self._target)


def device_memory(groups: Groups, config: RunConfig) -> Memory | None:
    """The memory of this process's shards' devices; None on the CPU, where there is no preflight."""
    if groups.device.type != "cuda":
        return None
    return GpuMemory(groups.devices, config.train.out_of_memory.target, config.hardware.memory_fraction)
