"""What may spoil a measurement: clocks, throttling, power, temperature, strangers on a GPU, load of the host."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from drumline.hardware.host import cpu_cores
from drumline.hardware.records import GpuSample
from drumline.hardware.sample import HARMLESS, read_snapshot

BUSY_HOST = 0.5
"""Load an available core before a benchmark from which it is told."""

LOW_CLOCK = 0.8
"""Share of the highest clock below which a GPU's clock under load is told."""


@dataclass(frozen=True)
class GpuState:
    """One GPU at one moment, as a result file keeps it; None where NVML does not say."""

    uuid: str
    index: int
    sm_clock_mhz: int | None
    max_sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: float | None
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
    """The state of these GPUs in this order (none: of the host alone). `nvml` stands in for pynvml in tests.

    A GPU that does not answer is left out, and a MIG instance has neither clocks nor power of its own.
    """
    samples = {sample.gpu.uuid: sample for sample in read_snapshot(nvml).gpus} if uuids else {}
    gpus = tuple(state_of(samples[uuid]) for uuid in uuids if uuid in samples)
    return MachineState(gpus, os.getloadavg()[0], cpu_cores())


def state_of(sample: GpuSample) -> GpuState:
    """Pure: what of a sample bears on a measurement."""
    processes = sample.processes
    return GpuState(
        uuid=sample.gpu.uuid,
        index=sample.gpu.index,
        sm_clock_mhz=sample.sm_clock_mhz,
        max_sm_clock_mhz=sample.max_sm_clock_mhz,
        memory_clock_mhz=sample.memory_clock_mhz,
        power_w=sample.power_w,
        power_limit_w=sample.power_limit_w,
        temperature_c=sample.temperature_c,
        throttled_by=sample.throttled_by or (),
        processes=None if processes is None else sum("compute" in process.kind for process in processes),
        memory_used_bytes=sample.memory_used_bytes,
    )


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
        causes = [cause for cause in gpu.throttled_by if cause not in HARMLESS]
        if causes:
            yield f"GPU {gpu.index} was slowed down by {', '.join(causes)}"
        clock, highest = gpu.sm_clock_mhz, gpu.max_sm_clock_mhz
        if clock is not None and highest and clock < LOW_CLOCK * highest:
            why = f" ({', '.join(gpu.throttled_by)})" if gpu.throttled_by else ""
            yield f"GPU {gpu.index} ran at {clock} of {highest} MHz{why}"
