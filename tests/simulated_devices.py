"""Simulated GPUs, and what each of them answers to NVML's questions; see simulated_nvml. No device is read."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_ulonglong
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

UNINITIALISED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED = 1, 2, 3, 4, 6, 9
TIMEOUT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH = 10, 12, 13, 15, 16, 18
ANY_INSTANCE = 0xFFFFFFFF


def _idle_fields() -> dict[int | tuple[int, int], int | float]:
    """Values of nvmlDeviceGetFieldValues by number (NVML_FI_*) for an idle, sound H100; what is missing is refused."""
    # ECC mode, ECC totals, remapped rows, memory temperature, clocks' and links' counters, power (mW), energy (mJ).
    zeros = (*range(3, 7), *range(142, 146), 38, 45, 52, 59, 160, *range(161, 164), *range(173, 184), 169)
    return {
        **dict.fromkeys(zeros, 0),
        **{1: 1, 2: 1, 82: 31, 83: 5_000_000_000, 91: 18, 94: 0, 95: 0},
        **{138: 1000, 139: 2000, 185: 70_000, 186: 71_000, 190: 700_000, 197: 0, 198: 0, 230: 0},
    }


@dataclass
class SimulatedProcess:
    """A process on a GPU; with `gpu_instance`, on that MIG instance of it."""

    pid: int
    memory_bytes: int | None = 1 << 30
    graphics: bool = False
    gpu_instance: int | None = None
    compute_instance: int = 0


@dataclass
class SimulatedLink:
    """One NVLink."""

    active: bool = True
    remote: str = "00000000:05:00.0"
    """PCI address of what is at the other end."""
    kind: int = 2
    """NVML_NVLINK_DEVICE_TYPE_*: 0 a GPU, 2 a switch."""
    errors: dict[int, int] = field(default_factory=dict)
    """Counters by NVML_NVLINK_ERROR_DL_*; absent: 0."""


@dataclass
class SimulatedInstance:
    """A MIG instance; what NVML does not tell of instances is refused."""

    uuid: str
    gpu_instance: int
    compute_instance: int = 0
    name: str = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    memory_bytes: int = 5 << 30
    memory_used_bytes: int = 0
    memory_reserved_bytes: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    hangs: set[str] = field(default_factory=set)
    asks: int = 0
    lost_after: int | None = None


@dataclass
class SimulatedGpu:
    """A GPU; as it stands, an idle and sound H100."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    memory_bytes: int = 80 << 30
    capability: tuple[int, int] = (9, 0)
    instances: dict[int, SimulatedInstance] | None = None
    """MIG instances by place; None for MIG off."""
    errors: dict[str, int] = field(default_factory=dict)
    """NVML's return code by the name of the function that gives it for this GPU."""
    values: dict[str, Any] = field(default_factory=dict)
    """Answers by the name of a function, as pynvml gives them; a callable gets the arguments after the handle."""
    fields: dict[int | tuple[int, int], int | float] = field(default_factory=_idle_fields)
    """Values of nvmlDeviceGetFieldValues by number, or by number and scope (a link); absent: not supported."""
    hangs: set[str] = field(default_factory=set)
    """Functions that do not come back for this GPU before `SimulatedNvml.release()`."""
    lost_after: int | None = None
    """Questions about this GPU that are still answered before it is lost (0: lost now); None: it is not lost."""
    asks: int = 0
    pci: str = ""
    """As NVML writes it, 00000000:3B:00.0; '': by its place."""
    memory_used_bytes: int = 0
    memory_reserved_bytes: int = 500 << 20
    """What the driver keeps; version 2 of the question tells it apart, version 1 counts it as used."""
    processes: list[SimulatedProcess] = field(default_factory=list)
    links: list[SimulatedLink] = field(default_factory=lambda: [SimulatedLink() for _ in range(18)])
    ecc: dict[tuple[int, int], int] = field(default_factory=dict)
    """nvmlDeviceGetTotalEccErrors by (0 corrected | 1 uncorrected, 0 volatile | 1 aggregate); absent: 0."""
    gpm: dict[int, float] | None = field(default_factory=lambda: dict.fromkeys((2, 3, 5, 10, 11, 12, 13, 20, 21), 0.0))
    """GPM metrics in percent (20, 21: MiB/s), by number; None: a GPU without GPM."""


@dataclass(frozen=True, eq=False)
class Handle:
    """What NVML hands out; good until NVML is shut down, in the process that asked for it."""

    device: SimulatedGpu | SimulatedInstance
    parent: SimulatedGpu | None
    generation: int


def answers_of_a_gpu() -> dict[str, Callable[..., Any]]:
    """Each gets the GPU, where NVML gets its handle, and answers for an idle one."""

    def link(answer: Callable[[SimulatedLink], Any]) -> Callable[..., Any]:
        return lambda gpu, number, *rest: answer(_link(gpu, number), *rest)

    return {
        "nvmlDeviceGetUtilizationRates": _utilization,
        "nvmlDeviceGetTemperature": lambda gpu, sensor: 30,
        "nvmlDeviceGetTemperatureV": lambda gpu, sensor, *version: 30,
        "nvmlDeviceGetTemperatureThreshold": lambda gpu, which: {0: 92, 1: 89, 2: 95, 3: 87}[which],
        "nvmlDeviceGetPowerUsage": lambda gpu: 70_000,
        "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: 700_000,
        "nvmlDeviceGetPowerManagementLimit": lambda gpu: 700_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": lambda gpu: 700_000,
        "nvmlDeviceGetTotalEnergyConsumption": lambda gpu: gpu.fields[83],
        "nvmlDeviceGetClockInfo": lambda gpu, which: {0: 345, 1: 345, 2: 2619, 3: 765}[which],
        "nvmlDeviceGetMaxClockInfo": lambda gpu, which: {0: 1980, 1: 1980, 2: 2619, 3: 1545}[which],
        "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: 0x1,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: 0x1,
        "nvmlDeviceGetPcieThroughput": lambda gpu, which: 0,
        "nvmlDeviceGetPcieReplayCounter": lambda gpu: 0,
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda gpu: 5,
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda gpu: 5,
        "nvmlDeviceGetGpuMaxPcieLinkGeneration": lambda gpu: 5,
        "nvmlDeviceGetCurrPcieLinkWidth": lambda gpu: 16,
        "nvmlDeviceGetMaxPcieLinkWidth": lambda gpu: 16,
        "nvmlDeviceGetFieldValues": _field_values,
        "nvmlDeviceGetEccMode": lambda gpu: [1, 1],
        "nvmlDeviceGetTotalEccErrors": lambda gpu, kind, counter: gpu.ecc.get((kind, counter), 0),
        "nvmlDeviceGetMemoryErrorCounter": lambda gpu, kind, counter, location: 0,
        "nvmlDeviceGetRemappedRows": lambda gpu: tuple(gpu.fields[number] for number in (142, 143, 144, 145)),
        "nvmlDeviceGetRowRemapperHistogram": lambda gpu: SimpleNamespace(max=640, high=0, partial=0, low=0, none=0),
        "nvmlDeviceGetNvLinkState": link(lambda one: int(one.active)),
        "nvmlDeviceGetNvLinkVersion": link(lambda one: 4),
        "nvmlDeviceGetNvLinkErrorCounter": lambda gpu, number, which: _link(gpu, number).errors.get(which, 0),
        "nvmlDeviceGetNvLinkRemotePciInfo": link(lambda one: SimpleNamespace(busId=one.remote)),
        "nvmlDeviceGetNvLinkRemoteDeviceType": link(lambda one: one.kind),
        "nvmlDeviceGetNumaNodeId": lambda gpu: 0,
        "nvmlDeviceGetCpuAffinity": lambda gpu, size: (c_ulonglong * size)(0xFF),
        "nvmlDeviceGetCpuAffinityWithinScope": lambda gpu, size, scope: (c_ulonglong * size)(0xFF),
        "nvmlDeviceGetMemoryAffinity": lambda gpu, size, scope: (c_ulonglong * size)(1),
        "nvmlDeviceGetComputeMode": lambda gpu: 0,
        "nvmlDeviceGetPersistenceMode": lambda gpu: 1,
        "nvmlDeviceGetPerformanceState": lambda gpu: 0,
        "nvmlDeviceGetSupportedEventTypes": lambda gpu: 0x1F,
        "nvmlGpmQueryDeviceSupport": lambda gpu: SimpleNamespace(isSupportedDevice=int(gpu.gpm is not None)),
    }


def whole(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Of whole GPUs only, as most of NVML's questions are."""

    def checked(handle: Handle, *args: Any) -> Any:
        if isinstance(handle.device, SimulatedInstance):
            raise pynvml.NVMLError(NOT_SUPPORTED)
        return answer(handle.device, *args)

    return checked


def part(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Of MIG instances only."""

    def checked(handle: Handle) -> Any:
        if isinstance(handle.device, SimulatedGpu):
            raise pynvml.NVMLError(INVALID_ARGUMENT)
        return answer(handle.device)

    return checked


def memory(handle: Handle, version: int | None = None) -> Any:
    device = handle.device
    free = device.memory_bytes - device.memory_used_bytes - device.memory_reserved_bytes
    if version:
        reserved = device.memory_reserved_bytes
        return SimpleNamespace(
            total=device.memory_bytes, free=free, used=device.memory_used_bytes, reserved=reserved, version=version
        )
    return SimpleNamespace(total=device.memory_bytes, free=free, used=device.memory_bytes - free)


def _utilization(gpu: SimulatedGpu) -> Any:
    if gpu.instances is not None:
        raise pynvml.NVMLError(NOT_SUPPORTED)
    return SimpleNamespace(gpu=0, memory=0)


def processes(graphics: bool) -> Callable[[Handle], list[Any]]:
    def answer(handle: Handle) -> list[Any]:
        gpu = handle.parent or handle.device
        assert isinstance(gpu, SimulatedGpu)
        found = [process for process in gpu.processes if process.graphics is graphics]
        if isinstance(instance := handle.device, SimulatedInstance):
            wanted = (instance.gpu_instance, instance.compute_instance)
            found = [process for process in found if (process.gpu_instance, process.compute_instance) == wanted]
        return [
            SimpleNamespace(
                pid=process.pid,
                usedGpuMemory=process.memory_bytes,
                gpuInstanceId=ANY_INSTANCE if process.gpu_instance is None else process.gpu_instance,
                computeInstanceId=ANY_INSTANCE if process.gpu_instance is None else process.compute_instance,
            )
            for process in found
        ]

    return answer


def _link(gpu: SimulatedGpu, number: int) -> SimulatedLink:
    if not 0 <= number < len(gpu.links):
        raise pynvml.NVMLError(INVALID_ARGUMENT)
    return gpu.links[number]


def _field_values(gpu: SimulatedGpu, wanted: list[int | tuple[int, int]]) -> Any:
    values = (pynvml.c_nvmlFieldValue_t * len(wanted))()
    for answer, name in zip(values, wanted, strict=True):
        number, scope = name if isinstance(name, tuple) else (name, 0)
        answer.fieldId, answer.scopeId = number, scope
        known = gpu.fields.get((number, scope), gpu.fields.get(number))
        if known is None:
            answer.nvmlReturn = NOT_SUPPORTED
        elif isinstance(known, float):
            answer.valueType, answer.value.dVal = pynvml.NVML_VALUE_TYPE_DOUBLE, known
        elif known < 0:
            answer.valueType, answer.value.siVal = pynvml.NVML_VALUE_TYPE_SIGNED_INT, known
        else:
            answer.valueType, answer.value.ullVal = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, known
    return values
