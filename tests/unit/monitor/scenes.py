"""Hand-made scenes of the live view."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console, RenderableType

from drumline.hardware.health import Finding, Verdict
from drumline.hardware.records import Gpu, GpuProcess, GpuSample, Pipes, Snapshot
from drumline.monitor.alerts import Alert
from drumline.monitor.runs import RunFacts
from drumline.monitor.scene import Scene

GIB = 1 << 30
NOW = 1_800_000_000.0


def sample(index: int = 0, **fields: object) -> GpuSample:
    gpu = Gpu(f"GPU-{index:04}", "NVIDIA H100 80GB HBM3", index, 80 * GIB, (9, 0), f"0000:{index:02}:00.0")
    known = GpuSample(
        gpu,
        NOW,
        utilization=0.92,
        memory_used_bytes=61 * GIB,
        temperature_c=61.0,
        slowdown_temperature_c=87.0,
        power_w=612.0,
        power_limit_w=700.0,
        sm_clock_mhz=1755,
        max_sm_clock_mhz=1980,
        throttled_by=(),
        pcie_generation=5,
        max_pcie_generation=5,
        pcie_width=16,
        max_pcie_width=16,
        pipes=Pipes(1.0, sm_active=0.88, tensor_active=0.41),
        processes=(GpuProcess(4711, "compute", 58 * GIB, "python", "alice", True),),
    )
    return replace(known, **fields)  # type: ignore[arg-type]


def curve(uuid: str, name: str) -> Iterable[tuple[float, float]]:
    tops = {"utilization": 1.0, "memory_used_bytes": 80.0 * GIB, "power_w": 700.0, "nvlink_tx_bytes_per_s": 9e9}
    top = tops.get(name)
    return [] if top is None else [(300.0 - second, top * (second % 60) / 60) for second in range(300)]


def scene(*samples: GpuSample, **fields: object) -> Scene:
    made = Scene(Snapshot(NOW, "nvml 580.159", samples or (sample(0), sample(1))), NOW + 1, "node7", series=curve)
    return replace(made, **fields)  # type: ignore[arg-type]


SICK = Verdict(
    "GPU-0001", "fail", (Finding("ecc", "fail", "2 uncorrectable errors of memory", "reset the GPU", "a guide"),)
)
RUN = RunFacts(
    Path("runs/small"),
    "small",
    "running",
    step=120,
    total_steps=400,
    step_age_s=3.0,
    loss=2.3125,
    units_per_s=51234.0,
    unit="tokens",
    eta_s=190.0,
    gpus=("GPU-0000",),
    cost=1.25,
)
ALERT = Alert("throttling", "GPU-0001", "firing", 0.9, NOW - 90, "warning", "throttled is 0.9", "look at cooling")
PENDING = Alert("low_use", "GPU-0000", "pending", 0.05, NOW - 9, "info", "use is 0.05", "")


def drawn(renderable: RenderableType, width: int = 100, *, color: bool = False) -> str:
    """What a terminal of this width shows, with its control codes where it has colours."""
    file = StringIO()
    Console(file=file, width=width, height=40, force_terminal=color, color_system="truecolor" if color else None).print(
        renderable, end=""
    )
    return file.getvalue()
