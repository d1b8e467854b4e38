"""Hand-made records of GPUs for the tests of the monitor."""

from __future__ import annotations

from typing import Any

from drumline.hardware.records import Gpu, GpuSample, Snapshot

H100 = "NVIDIA H100 80GB HBM3"


def gpu(index: int = 0) -> Gpu:
    return Gpu(f"GPU-{index}", H100, index, 80 << 30, (9, 0), f"0000:{index + 1:02x}:00.0")


def sample(index: int = 0, time: float = 1000.0, **values: Any) -> GpuSample:
    return GpuSample(gpu(index), time, **values)


def snapshot(*samples: GpuSample, time: float = 1000.0) -> Snapshot:
    return Snapshot(time, "nvml 580.159", samples)
