"""Metrics of GPUs, as rows: what was sampled, health, and XIDs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from drumline.hardware.records import GpuSample
from drumline.hardware.sample import THROTTLES
from drumline.hardware.xids import meaning
from drumline.monitor.metrics_table import Row, Value

if TYPE_CHECKING:
    from drumline.hardware.health import Verdict

MEGA = 1e6
STATUSES = ("ok", "warn", "fail")


def _field(name: str, scale: float = 1.0) -> Callable[[GpuSample], Value]:
    def read(sample: GpuSample) -> Value:
        value = getattr(sample, name)
        return None if value is None else value * scale

    return read


def _pipe(name: str) -> Callable[[GpuSample], Value]:
    def read(sample: GpuSample) -> Value:
        value: float | None = None if sample.pipes is None else getattr(sample.pipes, name)
        return value

    return read


def _info(sample: GpuSample) -> Value:
    gpu = sample.gpu
    capability = ".".join(map(str, gpu.compute_capability or ()))
    return {(str(gpu.index), gpu.pci_address or "", gpu.parent or "", capability): 1.0}


def _processes(sample: GpuSample) -> Value:
    if sample.processes is None:
        return None
    ours = sum(process.ours for process in sample.processes)
    return {("ours",): ours, ("others",): len(sample.processes) - ours}


def _process_memory(sample: GpuSample) -> Value:
    if sample.processes is None:
        return None
    sums: dict[tuple[str, ...], float] = {}
    for owner, ours in ("ours", True), ("others", False):
        theirs = [process.memory_bytes for process in sample.processes if process.ours is ours]
        # In a container the driver may not say what processes outside of it hold: no sum is better than a wrong one.
        if None not in theirs:
            sums[owner,] = sum(each or 0 for each in theirs)
    return sums


def _throttles(sample: GpuSample) -> Value:
    if sample.throttled_by is None:
        return None
    return {(cause,): float(cause in sample.throttled_by) for cause in (*THROTTLES.values(), *sample.throttled_by)}


_STATES: tuple[Row[GpuSample], ...] = (
    Row(
        "drumline_gpu_info",
        "",
        "Index as nvidia-smi has it, PCI address, the GPU that a MIG instance is a part of; always 1.",
        _info,
        labels=("index", "pci_address", "parent", "compute_capability"),
    ),
    Row(
        "drumline_gpu_throttled",
        "",
        "Whether its clocks are held down for this cause (1) or not (0); the power limit alone is harmless.",
        _throttles,
        labels=("cause",),
    ),
    Row(
        "drumline_gpu_processes",
        "",
        "Processes on it: ours, which drumline's launches of this user have started, and others.",
        _processes,
        labels=("owner",),
    ),
    Row(
        "drumline_gpu_process_memory_bytes",
        "bytes",
        "Memory that those processes hold; absent where the driver does not say it of all of them.",
        _process_memory,
        labels=("owner",),
    ),
)


def _gauges(unit: str, *rows: tuple[str, str, Callable[[GpuSample], Value]]) -> Iterator[Row[GpuSample]]:
    for name, help_, read in rows:
        yield Row(f"drumline_gpu_{name}", unit, help_, read)


GPU_ROWS: tuple[Row[GpuSample], ...] = (
    *_STATES,
    *_gauges(
        "ratio",
        (
            "utilization_ratio",
            "Share of the driver's last window in which any kernel ran; one that only waits counts too.",
            _field("utilization"),
        ),
        (
            "memory_utilization_ratio",
            "Share of that window in which its memory was read or written.",
            _field("memory_utilization"),
        ),
        ("sm_active_ratio", "Streaming multiprocessors at work, of all, between two looks.", _pipe("sm_active")),
        ("sm_occupancy_ratio", "Warps resident, of the most that fit.", _pipe("sm_occupancy")),
        ("tensor_active_ratio", "Share of cycles in which tensor cores worked.", _pipe("tensor_active")),
        ("dram_active_ratio", "Share of the memory's bandwidth that was used.", _pipe("dram_active")),
        ("fp16_active_ratio", "Share of cycles in which half-precision units worked.", _pipe("fp16_active")),
        ("fp32_active_ratio", "Share of cycles in which single-precision units worked.", _pipe("fp32_active")),
        ("fp64_active_ratio", "Share of cycles in which double-precision units worked.", _pipe("fp64_active")),
        ("fan_speed_ratio", "Speed of its fan, of the fastest.", _field("fan")),
    ),
    *_gauges(
        "bytes",
        ("memory_size_bytes", "Its whole memory.", lambda sample: sample.gpu.memory_bytes),
        ("memory_used_bytes", "Memory in use, by whomever.", _field("memory_used_bytes")),
        ("memory_free_bytes", "Memory that nobody uses.", _field("memory_free_bytes")),
    ),
    *_gauges(
        "celsius",
        ("temperature_celsius", "Temperature of the chip.", _field("temperature_c")),
        ("memory_temperature_celsius", "Temperature of its memory.", _field("memory_temperature_c")),
        ("slowdown_temperature_celsius", "Where the hardware begins to slow down.", _field("slowdown_temperature_c")),
    ),
    *_gauges(
        "watts",
        ("power_watts", "Power that it draws.", _field("power_w")),
        ("power_limit_watts", "Power that it may draw.", _field("power_limit_w")),
    ),
    *_gauges(
        "hertz",
        ("sm_clock_hertz", "Clock of the streaming multiprocessors.", _field("sm_clock_mhz", MEGA)),
        ("max_sm_clock_hertz", "Their highest clock.", _field("max_sm_clock_mhz", MEGA)),
        ("memory_clock_hertz", "Clock of its memory.", _field("memory_clock_mhz", MEGA)),
    ),
    *_gauges(
        "bytes_per_second",
        ("pcie_transmit_bytes_per_second", "Sent over PCIe, in a short window.", _field("pcie_tx_bytes_per_s")),
        ("pcie_receive_bytes_per_second", "Received over PCIe, in a short window.", _field("pcie_rx_bytes_per_s")),
    ),
    *_gauges(
        "",
        ("pcie_generation", "Generation of its PCIe link; a GPU that idles may lower it.", _field("pcie_generation")),
        ("pcie_max_generation", "Generation that GPU and slot allow.", _field("max_pcie_generation")),
        ("pcie_lanes", "Width of its PCIe link.", _field("pcie_width")),
        ("pcie_max_lanes", "Width that GPU and slot allow.", _field("max_pcie_width")),
    ),
    Row("drumline_gpu_energy_joules", "joules", "Energy since the driver was loaded.", _field("energy_j"), "counter"),
    Row("drumline_gpu_nvlink_transmit_bytes", "bytes", "Sent over NVLink.", _field("nvlink_tx_bytes"), "counter"),
    Row("drumline_gpu_nvlink_receive_bytes", "bytes", "Received over NVLink.", _field("nvlink_rx_bytes"), "counter"),
)


def _health(verdict: Verdict) -> Value:
    return {(status,): float(status == verdict.status) for status in STATUSES}


def _findings(verdict: Verdict) -> Value:
    return {(finding.code, finding.status): 1.0 for finding in verdict.findings}


HEALTH_ROWS: tuple[Row[Verdict], ...] = (
    Row(
        "drumline_gpu_health",
        "",
        "Which of ok, warn and fail its health is (1), and is not (0).",
        _health,
        labels=("status",),
    ),
    Row(
        "drumline_gpu_health_finding",
        "",
        "A reason for which its health is not ok, as long as there is it; always 1.",
        _findings,
        labels=("code", "status"),
    ),
)


def _xids_by_status(counts: Mapping[int, int]) -> Value:
    sums: dict[tuple[str, ...], float] = {(status,): 0.0 for status in STATUSES}
    for code, count in counts.items():
        sums[meaning(code).status,] += count
    return sums


XID_ROWS: tuple[Row[Mapping[int, int]], ...] = (
    Row(
        "drumline_gpu_xids",
        "",
        "XIDs since this exporter started, by what NVIDIA's catalogue says of the GPU: ok is the program's doing.",
        _xids_by_status,
        "counter",
        ("status",),
    ),
    Row(
        "drumline_gpu_xids_by_code",
        "",
        "The same by number; one that never came has no value.",
        lambda counts: {(str(code),): float(count) for code, count in counts.items()},
        "counter",
        ("xid",),
    ),
)
