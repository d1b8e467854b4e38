"""The GPUs of a process for its own code: look at them, watch them, sum up what they did."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from drumline.errors import HardwareError
from drumline.hardware.inventory import detect
from drumline.hardware.records import Gpu, GpuSample, Snapshot
from drumline.hardware.waiting import within
from drumline.monitor.activity import Activity, explain
from drumline.monitor.energy import Energy, EnergyMeter
from drumline.monitor.history import FIELDS, History
from drumline.monitor.sampler import STUCK_AFTER_S, Sampler
from drumline.monitor.source import MachineSource
from drumline.monitor.torch_memory import TorchMemory, read_torch_memory, torch_indexes
from drumline.monitor.window import Window

logger = logging.getLogger("drumline")

GIB = 1 << 30
TORCH_FIELDS = ("memory_allocated_bytes", "memory_reserved_bytes")
"""Fields of the history beside those of every sample: torch's allocator in this process, where it uses CUDA."""


@dataclass(frozen=True)
class GpuInfo:
    """One GPU of this process at one moment."""

    index: int
    """CUDA's index in this process (`cuda:0`); `gpu.index` is nvidia-smi's."""
    sample: GpuSample
    """What the driver says; a GPU that does not answer has no values."""
    activity: Activity
    torch: TorchMemory | None = None
    """What torch holds of it in this process; None before torch uses CUDA."""
    problem: str | None = None
    """Why there are no values."""

    @property
    def gpu(self) -> Gpu:
        """Which GPU: name, UUID, memory, compute capability."""
        return self.sample.gpu


@dataclass(frozen=True)
class GpuSummary:
    """What one GPU did over a time."""

    index: int
    """CUDA's index in this process."""
    gpu: Gpu
    fields: Mapping[str, Window]
    """By field of GpuSample, of Pipes, or of torch's memory (TORCH_FIELDS); those that nobody told are not in it."""
    energy: Energy | None
    """Since the first look, whatever the time that is asked for; None before the second look."""


class GPUMonitor:
    """Watches GPUs of this process: `with GPUMonitor() as monitor:`, or start_monitoring() and stop_monitoring().

    gpus: CUDA indexes, UUIDs or beginnings of UUIDs of GPUs that CUDA_VISIBLE_DEVICES leaves this process; None: all of
    those, of which there may be none. Raises HardwareError for one that is not there. every_s: seconds between two
    looks while it watches. source and nvml stand in for the driver in tests.
    """

    def __init__(
        self,
        gpus: Iterable[int | str] | None = None,
        *,
        every_s: float = 1.0,
        source: Callable[[], Snapshot] | None = None,
        nvml: Any = None,
    ) -> None:
        hardware = detect(os.environ, nvml)
        self.visible: tuple[Gpu, ...] = hardware.gpus
        """GPUs of this process, in CUDA's order."""
        self.source: str = hardware.gpu_source
        """Where they are known from, or why there is none."""
        self._torch: dict[str, int] = {}
        names = None if gpus is None else list(gpus)
        self.gpus: tuple[Gpu, ...] = self.visible if names is None else tuple(self._named(name) for name in names)
        """Those that are watched."""
        self._meter = EnergyMeter()
        self._sampler = Sampler(every_s, source=MachineSource(nvml) if source is None else source, on_sample=self._take)

    @property
    def history(self) -> History:
        """The newest looks, by UUID; `with monitor.history.phase(name)` gives a span a name for get_gpu_summary."""
        return self._sampler.history

    def start_monitoring(self) -> None:
        """Look at the GPUs from now on, on a thread of its own; without effect where it does already."""
        if self.gpus:
            self._sampler.start()

    def stop_monitoring(self) -> None:
        """End that; what was seen stays."""
        self._sampler.stop()

    def __enter__(self) -> Self:
        self.start_monitoring()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_monitoring()

    def get_gpu_info(self) -> tuple[GpuInfo, ...]:
        """Each GPU now; empty where there is none. A driver that hangs is a `problem` after STUCK_AFTER_S."""
        return self._infos(self.gpus, self._look())

    def get_available_gpus(self, min_free_memory: float = 0.0, max_utilization: float = 1.0) -> list[int]:
        """CUDA indexes of the watched GPUs that are healthy, that nobody else uses, and that have what is asked for.

        min_free_memory: share of a GPU's memory, 0 to 1. max_utilization: share of the last second, 0 to 1.
        """
        from drumline.hardware.selection import Wish, look, select_from

        if not self.gpus:
            return []
        wish = Wish(min_free_memory=min_free_memory, max_utilization=max_utilization)
        chosen = select_from(look(self.gpus, with_topology=False), wish).uuids
        return sorted(self._index(gpu) for gpu in self.gpus if gpu.uuid in chosen)

    def monitor_gpu_usage(self, gpu_id: int | str = 0) -> GpuInfo:
        """One GPU now, watched or not, by CUDA index or UUID. Raises HardwareError where there is no such one."""
        return self._infos([self._named(gpu_id)], self._look())[0]

    def record_gpu_metrics(self, device_ids: Iterable[int | str] | None = None) -> tuple[GpuInfo, ...]:
        """Put the state of now into the history, and return it for these GPUs (None: all watched).

        While it watches anyway this asks nobody but torch and takes the newest look: cheap enough for every step.
        """
        snapshot = self._sampler.latest if self._sampler.running else None
        if snapshot is None:
            snapshot = self._look()
        else:
            self._add_torch()
        gpus = self.gpus if device_ids is None else [self._named(name) for name in device_ids]
        return self._infos(gpus, snapshot)

    def log_gpu_stats(self, label: str = "") -> None:
        """One line a GPU into the log `drumline`, at level INFO; one line that says why where there is none."""
        start = f"{label}: " if label else ""
        for info in self.get_gpu_info():
            logger.info("%s%s", start, in_words(info))
        if not self.gpus:
            logger.info("%sno GPU: %s", start, self.source)

    def get_gpu_summary(self, last_s: float | None = None, phase: str | None = None) -> dict[str, GpuSummary]:
        """What the watched GPUs did, by UUID: over all looks, the newest seconds, or the last phase of that name.

        Of a time longer than the history keeps, percentiles tell of the end only, as does a phase as a whole.
        """
        summaries = {}
        for gpu in self.gpus:
            windows = {
                field: window
                for field in (*FIELDS, *TORCH_FIELDS)
                if (window := self.history.window(gpu.uuid, field, last_s=last_s, phase=phase)) is not None
            }
            summaries[gpu.uuid] = GpuSummary(self._index(gpu), gpu, windows, self._meter.of(gpu.uuid))
        return summaries

    def _named(self, name: int | str) -> Gpu:
        text = str(name).strip().lower()
        if text.isdecimal():
            found = [gpu for gpu in self.visible if self._index(gpu) == int(text)]
        else:
            found = [gpu for gpu in self.visible if len(text) > len("GPU-") and gpu.uuid.lower().startswith(text)]
        if len(found) == 1:
            return found[0]
        there = ", ".join(f"{self._index(gpu)}: {gpu.uuid} ({gpu.name})" for gpu in self.visible) or "there is none"
        what = "fits several GPUs" if found else "is no GPU"
        raise HardwareError(f"{name!r} {what} of this process ({self.source})", f"choose from its GPUs: {there}")

    def _index(self, gpu: Gpu) -> int:
        """CUDA's: as torch tells it where it uses CUDA, which also knows in what order CUDA takes unlike GPUs."""
        return self._torch_indexes().get(gpu.uuid, self.visible.index(gpu))

    def _torch_indexes(self) -> dict[str, int]:
        """Torch's index of each GPU by UUID, from when it uses CUDA; it then stays as it is."""
        if not self._torch:
            self._torch = torch_indexes(self.visible)
        return self._torch

    def _look(self) -> Snapshot:
        """A look that begins now, or why there is none; the session with the driver stays open for the next."""
        if not self.visible:
            return Snapshot(time.time(), self.source)
        if self._sampler.running:
            found: Any = self._sampler.look_within(STUCK_AFTER_S)
            reason = self._sampler.stuck or "the driver did not answer in time"
        else:
            found = within(STUCK_AFTER_S, self._sampler.look)
            reason = getattr(found, "reason", "")
        return found if isinstance(found, Snapshot) else Snapshot(time.time(), reason)

    def _infos(self, gpus: Sequence[Gpu], snapshot: Snapshot) -> tuple[GpuInfo, ...]:
        before = self._sampler.previous
        return tuple(self._info(gpu, snapshot, None if before is snapshot else before) for gpu in gpus)

    def _info(self, gpu: Gpu, snapshot: Snapshot, previous: Snapshot | None) -> GpuInfo:
        found, before = _of(gpu, snapshot), _of(gpu, previous)
        why = "; ".join(snapshot.problems) or snapshot.source
        problem = f"no answer: {why}" if found is None else None
        sample = GpuSample(gpu, snapshot.time) if found is None else found
        index = self._torch_indexes().get(gpu.uuid)
        memory = None if index is None else read_torch_memory(index)
        return GpuInfo(self._index(gpu), sample, explain(sample, before), memory, problem)

    def _take(self, snapshot: Snapshot) -> None:
        self._meter.add(snapshot)
        self._add_torch()

    def _add_torch(self) -> None:
        for gpu in self.gpus:
            index = self._torch_indexes().get(gpu.uuid)
            memory = None if index is None else read_torch_memory(index)
            if memory is not None:
                sizes = (memory.allocated_bytes, memory.reserved_bytes)
                self.history.amend(gpu.uuid, dict(zip(TORCH_FIELDS, map(float, sizes), strict=True)))


def _of(gpu: Gpu, snapshot: Snapshot | None) -> GpuSample | None:
    samples = () if snapshot is None else snapshot.gpus
    return next((sample for sample in samples if sample.gpu.uuid == gpu.uuid), None)


def in_words(info: GpuInfo) -> str:
    """Pure: one GPU in one line for people; what nobody told is left out."""
    sample = info.sample
    start = f"GPU {info.index} ({sample.gpu.name})"
    if info.problem is not None:
        return f"{start}: {info.problem}"
    parts = []
    if sample.utilization is not None:
        parts.append(f"{sample.utilization:.0%} used ({info.activity.kind})")
    if sample.memory_used_bytes is not None:
        whole = "" if sample.gpu.memory_bytes is None else f" of {sample.gpu.memory_bytes / GIB:.1f}"
        parts.append(f"{sample.memory_used_bytes / GIB:.1f}{whole} GiB")
    if info.torch is not None:
        parts.append(f"torch {info.torch.allocated_bytes / GIB:.1f} GiB")
    if sample.temperature_c is not None:
        parts.append(f"{sample.temperature_c:.0f} °C")
    if sample.power_w is not None:
        most = "" if sample.power_limit_w is None else f" of {sample.power_limit_w:.0f}"
        parts.append(f"{sample.power_w:.0f}{most} W")
    return f"{start}: {', '.join(parts) or 'the driver says nothing about it'}"


def get_gpu_info() -> tuple[GpuInfo, ...]:
    """Each GPU of this process now, in CUDA's order; empty where there is none."""
    return GPUMonitor().get_gpu_info()
