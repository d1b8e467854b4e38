"""What a machine has, and what its GPUs do at one moment, as frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Gpu:
    """One GPU (or MIG instance), named by UUID; indexes differ between CUDA and NVML and are only for people."""

    uuid: str
    name: str
    index: int
    """NVML's index (PCI order), as nvidia-smi shows it; a MIG instance has its GPU's."""
    memory_bytes: int | None
    """Its whole memory; None where NVML does not say (GPUs that share the host's memory)."""
    compute_capability: tuple[int, int] | None
    """None where NVML does not say."""
    pci_address: str | None = None
    """domain:bus:device.function, in lower case as /sys/bus/pci/devices has it; None where nobody says."""
    parent: str | None = None
    """UUID of the GPU that a MIG instance is a part of; None for a whole GPU."""


@dataclass(frozen=True)
class Host:
    """CPU and memory that this process may use, container limits applied."""

    cpu_cores: int
    memory_bytes: int
    hostname: str


@dataclass(frozen=True)
class Hardware:
    """The machine as a run may use it."""

    gpus: tuple[Gpu, ...]
    """Visible GPUs (CUDA_VISIBLE_DEVICES applied), in CUDA's order."""
    host: Host
    gpu_source: str
    """Where `gpus` came from and what was left out, or why it is empty: 'nvml 580.159', 'no NVIDIA driver', ..."""
    left_out: tuple[str, ...] = ()
    """Visible GPUs that a launch does not take, each with its reason; those are not in `gpus`."""


@dataclass(frozen=True)
class GpuProcess:
    """One process on a GPU."""

    pid: int
    """As the driver tells it, which in a container may be a number of the host's."""
    kind: str
    """compute, graphics, or compute+graphics."""
    memory_bytes: int | None
    name: str | None = None
    """None where this process may not see it: another pid namespace, or it has ended."""
    user: str | None = None
    ours: bool = False
    """Whether this process, a child of it, or a process of one of drumline's launches by the same user."""


@dataclass(frozen=True)
class Pipes:
    """How much of a GPU's units worked over a window, 0 to 1, by NVML's GPM (Hopper and later); None: not said."""

    window_s: float
    sm_active: float | None = None
    """Streaming multiprocessors with at least one warp resident."""
    sm_occupancy: float | None = None
    """Resident warps, of the most that fit."""
    tensor_active: float | None = None
    dram_active: float | None = None
    fp16_active: float | None = None
    fp32_active: float | None = None
    fp64_active: float | None = None


@dataclass(frozen=True)
class GpuSample:
    """One GPU (or MIG instance) at one moment, in base units; shares are 0 to 1; None where nobody says."""

    gpu: Gpu
    time: float
    """Seconds since 1970."""
    utilization: float | None = None
    """Share of the driver's last window in which any kernel ran; a kernel that only waits counts too."""
    memory_utilization: float | None = None
    """Share of the same window in which memory was read or written."""
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    slowdown_temperature_c: float | None = None
    """Where the hardware begins to slow down."""
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    """Since the driver was loaded."""
    fan: float | None = None
    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttled_by: tuple[str, ...] | None = None
    """Causes in words, see hardware.sample.THROTTLES; empty: none."""
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    pcie_generation: int | None = None
    max_pcie_generation: int | None = None
    """Of GPU and slot together."""
    pcie_width: int | None = None
    max_pcie_width: int | None = None
    nvlink_tx_bytes: float | None = None
    """Over all links, since the driver was loaded."""
    nvlink_rx_bytes: float | None = None
    pipes: Pipes | None = None
    """Needs two looks of one session; None at the first."""
    processes: tuple[GpuProcess, ...] | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    """By the name of a field above that is None, why the driver gave no value."""


@dataclass(frozen=True)
class Snapshot:
    """All GPUs of the machine at one moment, whatever CUDA_VISIBLE_DEVICES says."""

    time: float
    source: str
    """'nvml 580.159', 'nvidia-smi 580.159 (no nvidia-ml-py)', 'torch ...', or why there is nothing."""
    gpus: tuple[GpuSample, ...] = ()
    problems: tuple[str, ...] = ()
    """GPUs that were left out, each with its reason."""
    no_gpu: bool = False
    """Whether `source` says of a machine without GPU or driver that it is one: nothing is wrong."""
