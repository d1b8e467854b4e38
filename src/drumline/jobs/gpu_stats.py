"""The GPUs of this machine, as a service tells of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from drumline.monitor.gpu_monitor import GPUMonitor

_LEFT_OUT = frozenset({"gpu", "processes", "pipes", "refused"})
"""Fields of a sample that are told otherwise, or are about other people's processes."""


def gpu_stats() -> dict[str, Any]:
    """available_gpus: CUDA indexes that a training could take; gpu_info: a record a GPU; source: who tells. As JSON."""
    monitor = GPUMonitor()
    return {
        "available_gpus": monitor.get_available_gpus(),
        "gpu_info": [
            {
                "id": info.index,
                "name": info.gpu.name,
                "uuid": info.gpu.uuid,
                "memory_total_bytes": info.gpu.memory_bytes,
                "activity": info.activity.kind,
                "problem": info.problem,
            }
            | {name: value for name, value in asdict(info.sample).items() if name not in _LEFT_OUT}
            for info in monitor.get_gpu_info()
        ],
        "source": monitor.source,
    }
