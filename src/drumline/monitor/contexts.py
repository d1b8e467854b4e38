"""Blocks of code that are watched: what the GPUs did meanwhile, and what the block took of time, memory and energy."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from drumline.hardware.records import Snapshot
from drumline.monitor.energy import Energy
from drumline.monitor.gpu_monitor import GIB, GpuInfo, GPUMonitor, GpuSummary
from drumline.monitor.source import MachineSource
from drumline.monitor.torch_memory import read_torch_memory, torch_cuda, torch_indexes

logger = logging.getLogger("drumline")

EVERY_S = 0.1
"""Seconds between two looks during a block: its largest memory is the largest that was seen at one of them."""


@contextmanager
def gpu_monitoring_context(
    gpus: Iterable[int | str] | None = None, *, every_s: float = 1.0, source: Callable[[], Snapshot] | None = None
) -> Iterator[GPUMonitor]:
    """Watches these GPUs (None: all of this process) during a block; the log then has a line a GPU.

    Gives the GPUMonitor, which still has everything afterwards. Raises HardwareError for a GPU that is not there.
    source: stands in for the driver in tests.
    """
    monitor = GPUMonitor(gpus, every_s=every_s, source=source)
    try:
        with monitor:
            monitor.get_gpu_info()  # a look at both ends, so that the energy is the whole block's
            try:
                yield monitor
            finally:
                monitor.get_gpu_info()
    finally:
        for summary in monitor.get_gpu_summary().values():
            logger.info("%s", summary_in_words(summary))
        if not monitor.gpus:
            logger.info("no GPU was watched: %s", monitor.source)


@dataclass(frozen=True)
class BlockGpu:
    """What one GPU did during a block of code; None where nobody says."""

    index: int
    """CUDA's index in this process."""
    uuid: str
    memory_before_bytes: int | None
    """In use on the GPU, by everybody."""
    memory_after_bytes: int | None
    memory_max_bytes: int | None
    """The most that was seen, at looks EVERY_S apart."""
    torch_peak_bytes: int | None
    """The most that torch had in tensors during the block; None where that was less than it ever had before."""
    utilization: float | None
    """Mean share of time in which a kernel ran."""
    energy: Energy | None
    """Of everybody on this GPU. The counter moves some ten times a second: of a shorter block it says little."""


class PerformanceContext:
    """Wall time, CPU time, GPU memory and energy of a block, see performance_context; filled in at its end."""

    def __init__(
        self, name: str, gpus: Iterable[int | str] | None = None, *, source: Callable[[], Snapshot] | None = None
    ) -> None:
        self.name = name
        self.wall_s: float | None = None
        """Seconds from start to end; None before the end."""
        self.cpu_s: float | None = None
        """Seconds of CPU time, of all threads of this process; None before the end."""
        self.gpus: tuple[BlockGpu, ...] = ()
        """Each GPU; empty where there is none."""
        self._names = gpus
        self._source = source
        self._monitor: GPUMonitor | None = None
        self._abandoned = False
        self._before: tuple[GpuInfo, ...] = ()
        self._started = (0.0, 0.0)

    @property
    def energy_j(self) -> float | None:
        """Joules of all its GPUs together; None where nobody says."""
        found = [gpu.energy.joules for gpu in self.gpus if gpu.energy is not None and gpu.energy.seconds > 0]
        return sum(found) if found else None

    @property
    def gpu_memory_bytes(self) -> int | None:
        """The most memory in use that was seen on any one of its GPUs; None where nobody says."""
        return max((gpu.memory_max_bytes for gpu in self.gpus if gpu.memory_max_bytes is not None), default=None)

    def __enter__(self) -> Self:
        self._begin()
        self._started = _clocks()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    async def __aenter__(self) -> Self:
        # On other threads: the driver and the GPUs may take their time, and other tasks must not wait for them.
        try:
            await asyncio.to_thread(self._begin)
        except asyncio.CancelledError:
            self._abandon()
            raise
        self._started = _clocks()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._end)

    def _begin(self) -> None:
        source = MachineSource(counters_every_s=0.0) if self._source is None else self._source
        self._monitor = monitor = GPUMonitor(self._names, every_s=EVERY_S, source=source)
        _wait_for_gpus(monitor)
        started = False
        try:
            monitor.start_monitoring()
            self._before = monitor.get_gpu_info()
            started = not self._abandoned
        finally:
            if not started:
                monitor.stop_monitoring()

    def _abandon(self) -> None:
        """Have the monitor stopped by whoever comes last: the cancelled task, or the thread that still starts it."""
        self._abandoned = True
        if self._monitor is not None:
            self._monitor.stop_monitoring()

    def _end(self) -> None:
        monitor = self._monitor
        assert monitor is not None
        try:
            _wait_for_gpus(monitor)
            wall, cpu = _clocks()
            self.wall_s, self.cpu_s = wall - self._started[0], cpu - self._started[1]
            after = monitor.get_gpu_info()
        finally:
            monitor.stop_monitoring()
        summaries = monitor.get_gpu_summary()
        self.gpus = tuple(
            _block_gpu(before, later, summaries[later.gpu.uuid])
            for before, later in zip(self._before, after, strict=True)
        )
        logger.info("%s", block_in_words(self))


def performance_context(
    name: str, gpus: Iterable[int | str] | None = None, *, source: Callable[[], Snapshot] | None = None
) -> PerformanceContext:
    """What measures the block of code that follows it in a `with` or an `async with` statement.

    After the block it has wall_s, cpu_s, gpu_memory_bytes, energy_j and gpus, and the log a line at level INFO.

    gpus: CUDA indexes or UUIDs; None: all of this process, of which there may be none. Work that torch has enqueued on
    a GPU is waited for at both ends: what the block has started counts, what was started before it does not. In a
    coroutine the times include what other tasks did meanwhile. Raises HardwareError for a GPU that is not there.
    """
    return PerformanceContext(name, gpus, source=source)


def summary_in_words(summary: GpuSummary) -> str:
    """Pure: what one GPU did over a time, in one line for people; what nobody told is left out."""
    fields, parts = summary.fields, []
    if "utilization" in fields:
        parts.append(f"{fields['utilization'].mean:.0%} used")
    if "tensor_active" in fields:
        parts.append(f"tensor cores {fields['tensor_active'].mean:.0%}")
    if "memory_used_bytes" in fields:
        parts.append(f"at most {fields['memory_used_bytes'].max / GIB:.1f} GiB")
    if "temperature_c" in fields:
        parts.append(f"at most {fields['temperature_c'].max:.0f} °C")
    if "power_w" in fields:
        parts.append(f"{fields['power_w'].mean:.0f} W")
    if summary.energy is not None and summary.energy.seconds > 0:
        parts.append(f"{summary.energy.joules:.0f} J")
    return f"GPU {summary.index} ({summary.gpu.name}): {', '.join(parts) or 'the driver said nothing about it'}"


def block_in_words(block: PerformanceContext) -> str:
    """Pure: what a block took, in one line for people; what nobody told is left out."""
    parts = [f"{block.wall_s:.3f} s, {block.cpu_s:.3f} s of CPU time"] if block.wall_s is not None else []
    if block.gpu_memory_bytes is not None:
        parts.append(f"at most {block.gpu_memory_bytes / GIB:.1f} GiB in use on a GPU")
    if block.energy_j is not None:
        parts.append(f"{block.energy_j:.0f} J")
    return f"{block.name}: {', '.join(parts)}"


def _block_gpu(before: GpuInfo, after: GpuInfo, summary: GpuSummary) -> BlockGpu:
    used, busy = summary.fields.get("memory_used_bytes"), summary.fields.get("utilization")
    peak = None
    if after.torch is not None:
        highest = 0 if before.torch is None else before.torch.peak_allocated_bytes
        peak = after.torch.peak_allocated_bytes if after.torch.peak_allocated_bytes > highest else None
    return BlockGpu(
        index=after.index,
        uuid=after.gpu.uuid,
        memory_before_bytes=before.sample.memory_used_bytes,
        memory_after_bytes=after.sample.memory_used_bytes,
        memory_max_bytes=None if used is None else int(used.max),
        torch_peak_bytes=peak,
        utilization=None if busy is None else busy.mean,
        energy=summary.energy,
    )


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _wait_for_gpus(monitor: GPUMonitor) -> None:
    """Until what torch has enqueued there is done."""
    cuda = torch_cuda()
    for gpu in monitor.gpus if cuda is not None else ():
        index = torch_indexes([gpu]).get(gpu.uuid)
        memory = None if index is None else read_torch_memory(index)
        # Where torch has never been, asking would make a context of some hundred MB.
        if memory is not None and memory.reserved_bytes:
            cuda.synchronize(index)
