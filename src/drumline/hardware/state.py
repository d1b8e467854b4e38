"""What may spoil a measurement: clocks, throttling, power, temperature, strangers on a GPU, load of the host."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from drumline.hardware.host import cpu_cores
from drumline.hardware.nvml import Unavailable, ask

# nvml.h, nvmlClocksEventReasons, in words for people. A GPU that idles, or whose clocks somebody has set, is not slowed
# down by these.
THROTTLES = {
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
POWER_LIMIT = "power limit"

BUSY_HOST = 0.5
"""Load an available core before a benchmark from which it is told."""

LOW_CLOCK = 0.8
"""Share of the highest clock below which a GPU's clock under load is told."""


@dataclass(frozen=True)
class GpuState:
    """One GPU at one moment; None where NVML does not say."""

    uuid: str
    index: int
    sm_clock_mhz: int | None
    max_sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: int | None
    throttled_by: tuple[str, ...]
    processes: int | None
    """Processes that compute on it, of whomever."""
    memory_used_bytes: int | None


@dataclass(frozen=True)
class MachineState:
    """GPUs and host at one moment."""

    gpus: tuple[GpuState, ...]
    load: float
    """Processes that ran or waited for a core, averaged over the last minute."""
    cores: int
    """Cores that this process may use."""

    def to_json(self) -> dict[str, Any]:
        """As a result file holds it."""
        return {**asdict(self), "gpus": [{**asdict(gpu), "throttled_by": list(gpu.throttled_by)} for gpu in self.gpus]}


def read_state(uuids: Sequence[str], nvml: Any = None) -> MachineState:
    """The state of these GPUs (none: of the host alone). `nvml` stands in for pynvml in tests.

    A GPU that does not answer is left out, and a MIG instance has neither clocks nor power of its own.
    """
    gpus = tuple(_read_gpus(uuids, nvml)) if uuids else ()
    return MachineState(gpus, os.getloadavg()[0], cpu_cores())


def warnings_before(state: MachineState) -> Iterator[str]:
    """What will disturb a benchmark that has not begun: nothing of ours is on the GPUs yet."""
    for gpu in state.gpus:
        if gpu.processes:
            yield f"GPU {gpu.index} is not free: {gpu.processes} other process(es) compute on it"
    if state.load > BUSY_HOST * state.cores:
        yield f"the host is busy: a load of {state.load:.1f} on {state.cores} core(s) before the benchmark"


def warnings_under_load(state: MachineState) -> Iterator[str]:
    """What disturbed a benchmark, read at the end of it while the GPUs were warm.

    A power limit alone is how large GPUs run under full load; it is told only where the clock has fallen far.
    """
    for gpu in state.gpus:
        causes = [cause for cause in gpu.throttled_by if cause != POWER_LIMIT]
        if causes:
            yield f"GPU {gpu.index} was slowed down by {', '.join(causes)}"
        clock, highest = gpu.sm_clock_mhz, gpu.max_sm_clock_mhz
        if clock is not None and highest and clock < LOW_CLOCK * highest:
            why = f" ({', '.join(gpu.throttled_by)})" if gpu.throttled_by else ""
            yield f"GPU {gpu.index} ran at {clock} of {highest} MHz{why}"


def _read_gpus(uuids: Sequence[str], nvml: Any) -> Iterator[GpuState]:
    if nvml is None:
        try:
            import pynvml
        except ImportError:
            return
        nvml = pynvml
    if isinstance(ask(nvml, "nvmlInit"), Unavailable):
        return
    try:
        for uuid in uuids:
            handle = ask(nvml, "nvmlDeviceGetHandleByUUID", uuid)
            if not isinstance(handle, Unavailable):
                yield _read_gpu(nvml, handle, uuid)
    finally:
        ask(nvml, "nvmlShutdown")


def _read_gpu(nvml: Any, handle: Any, uuid: str) -> GpuState:
    def number(function: str, *args: int) -> int | None:
        value = ask(nvml, function, handle, *args)
        return None if isinstance(value, Unavailable) else int(value)

    # NVML's NVML_CLOCK_SM, NVML_CLOCK_MEM and NVML_TEMPERATURE_GPU.
    power, limit = number("nvmlDeviceGetPowerUsage"), number("nvmlDeviceGetEnforcedPowerLimit")
    reasons = number("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # the name of it before driver 535
        reasons = number("nvmlDeviceGetCurrentClocksThrottleReasons")
    processes = ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    return GpuState(
        uuid=uuid,
        index=number("nvmlDeviceGetIndex") or 0,
        sm_clock_mhz=number("nvmlDeviceGetClockInfo", 1),
        max_sm_clock_mhz=number("nvmlDeviceGetMaxClockInfo", 1),
        memory_clock_mhz=number("nvmlDeviceGetClockInfo", 2),
        power_w=None if power is None else power / 1000,
        power_limit_w=None if limit is None else limit / 1000,
        temperature_c=number("nvmlDeviceGetTemperature", 0),
        throttled_by=tuple(name for bit, name in THROTTLES.items() if (reasons or 0) & bit),
        processes=None if isinstance(processes, Unavailable) else len(processes),
        memory_used_bytes=None if isinstance(memory, Unavailable) else int(memory.used),
    )
