"""The e-mail sequence system's view of the GPUs, with flat keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any

from drumline.monitor.gpu_monitor import GPUMonitor as Monitor
from drumline.monitor.torch_memory import torch_cuda

if TYPE_CHECKING:
    from drumline.monitor.gpu_monitor import GpuInfo, GpuSummary

FIELDS = {
    "memory_allocated_bytes": "memory_allocated",
    "memory_reserved_bytes": "memory_reserved",
    "memory_used_bytes": "memory_used",
    "utilization": "gpu_utilization",
    "temperature_c": "temperature",
    "power_w": "power_usage",
}
"""By drumline's name of a field."""


class GPUMonitor:
    """Watches the GPUs of this process. options: drumline.GPUMonitor's."""

    def __init__(self, **options: Any) -> None:
        self._monitor = Monitor(**options)

    def start_monitoring(self) -> None:
        """Look at them once a second from now on, on a thread; without effect where there is none."""
        self._monitor.start_monitoring()

    def stop_monitoring(self) -> None:
        """End that; what was seen stays."""
        self._monitor.stop_monitoring()

    def record_gpu_metrics(self, device_ids: Iterable[int] | None = None) -> dict[int, dict[str, Any]]:
        """Take the state of now into the summary; returns it by CUDA's number, for these devices (None: all)."""
        return {info.index: metrics(info) for info in self._monitor.record_gpu_metrics(device_ids)}

    def get_gpu_summary(self) -> dict[str, float]:
        """What was seen so far, as `<what>_mean` over time and GPUs, and `<what>_max`, the most of any GPU.

        memory_allocated and memory_reserved are torch's in this process (bytes), 0 where it uses no GPU. memory_used is
        everybody's (bytes), gpu_utilization a share of time, temperature in °C, power_usage in watts; these four are
        only there if the driver tells them.
        """
        return flat(self._monitor.get_gpu_summary())

    def get_gpu_info(self) -> dict[str, Any]:
        """device_count, current_device (CUDA's number; None without GPU), and by number each of the `devices`.

        A device has its name, total_memory (bytes) and capability (major, minor).
        """
        devices = {
            info.index: {
                "name": info.gpu.name,
                "total_memory": info.gpu.memory_bytes,
                "capability": info.gpu.compute_capability,
            }
            for info in self._monitor.get_gpu_info()
        }
        cuda = torch_cuda()
        current = 0 if cuda is None else cuda.current_device()
        return {"device_count": len(devices), "current_device": current if devices else None, "devices": devices}


def metrics(info: GpuInfo) -> dict[str, Any]:
    """Pure: one GPU at one moment; None where nobody says."""
    torch, sample = info.torch, info.sample
    return {
        "memory_allocated": 0 if torch is None else torch.allocated_bytes,
        "memory_reserved": 0 if torch is None else torch.reserved_bytes,
        "memory_used": sample.memory_used_bytes,
        "gpu_utilization": sample.utilization,
        "temperature": sample.temperature_c,
        "power_usage": sample.power_w,
    }


def flat(summaries: Mapping[str, GpuSummary]) -> dict[str, float]:
    """Pure: the summary in the keys that get_gpu_summary tells of."""
    found = dict.fromkeys(
        (f"memory_{kind}_{what}" for kind in ("allocated", "reserved") for what in ("mean", "max")), 0.0
    )
    for field, name in FIELDS.items():
        if windows := [each.fields[field] for each in summaries.values() if field in each.fields]:
            found[f"{name}_mean"] = fmean(window.mean for window in windows)
            found[f"{name}_max"] = max(window.max for window in windows)
    return found
