from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from drumline.errors import HardwareError
from drumline.hardware.inventory import detect
from drumline.hardware.records import Snapshot
from drumline.monitor import contexts, gpu_monitor
from drumline.monitor.contexts import gpu_monitoring_context, performance_context
from drumline.monitor.history import History
from tests.simulated_nvml import DRIVER_NOT_LOADED, SimulatedGpu, SimulatedNvml
from tests.unit.monitor.snapshots import sample, snapshot

GIB = 1 << 30


class Source:
    """Two GPUs whose memory grows by 1 GiB a look and that take 100 J a look."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> Snapshot:
        self.looks += 1
        values: dict[str, Any] = {
            "memory_used_bytes": self.looks * GIB,
            "energy_j": 100.0 * self.looks,
            "utilization": 0.5,
        }
        at = float(self.looks)
        return snapshot(sample(0, at, **values), sample(1, at, **values), time=at)


class Shrinking(Source):
    """The same with memory that shrinks by 1 GiB a look."""

    def __call__(self) -> Snapshot:
        found = super().__call__()
        used = (40 - self.looks) * GIB
        return replace(found, gpus=tuple(replace(each, memory_used_bytes=used) for each in found.gpus))


def have(monkeypatch: pytest.MonkeyPatch, nvml: SimulatedNvml) -> None:
    """Make this a machine with these GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpu_monitor, "detect", lambda environ, _: detect(environ, nvml))


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, SimulatedNvml([SimulatedGpu("GPU-0"), SimulatedGpu("GPU-1")]))
    monkeypatch.setattr(contexts, "EVERY_S", 3600.0)  # looks at both ends only


def test_a_block_is_measured(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    with caplog.at_level(logging.INFO, logger="drumline"), performance_context("load", source=source) as block:
        assert block.wall_s is None and block.gpus == ()
        begin = time.perf_counter()
        cpu = time.process_time()
        while time.process_time() - cpu < 0.02:
            pass
        inside = time.perf_counter() - begin
    assert block.wall_s is not None and inside <= block.wall_s < inside + 0.05
    assert block.cpu_s is not None and block.cpu_s >= 0.02
    first = block.gpus[0]
    assert (first.index, first.uuid, first.utilization, first.torch_peak_bytes) == (0, "GPU-0", 0.5, None)
    assert first.memory_before_bytes is not None and first.memory_after_bytes == source.looks * GIB
    assert block.gpu_memory_bytes == first.memory_max_bytes == source.looks * GIB
    assert first.energy is not None and first.energy.joules == 100.0 * (source.looks - 1)
    assert block.energy_j == 2 * first.energy.joules
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("load: 0.0") and line.endswith(f"GiB in use on a GPU, {block.energy_j:.0f} J")


def test_of_a_long_block_nothing_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(History.__init__, "__defaults__", (2,))
    with performance_context("load", source=Shrinking()) as block:
        assert block._monitor is not None
        for _ in range(4):
            block._monitor.get_gpu_info()
    assert block.gpu_memory_bytes is not None and block.gpus[0].memory_after_bytes is not None
    assert block.gpu_memory_bytes >= block.gpus[0].memory_after_bytes + 4 * GIB


def test_a_block_that_fails_is_measured_too_and_fails() -> None:
    with pytest.raises(KeyError), performance_context("load", source=Source()) as block:
        raise KeyError
    assert block.wall_s is not None and len(block.gpus) == 2
    assert not _samplers()


def test_a_block_of_a_coroutine_lets_others_run_while_the_driver_is_asked() -> None:
    asked, go_on = threading.Event(), threading.Event()
    plain = Source()

    def slow() -> Snapshot:
        asked.set()
        assert go_on.wait(10)
        return plain()

    async def other() -> None:
        while not asked.is_set():
            await asyncio.sleep(0.001)
        go_on.set()

    async def both() -> float | None:
        task = asyncio.create_task(other())
        async with performance_context("load", [1], source=slow) as block:
            await asyncio.sleep(0.02)
        await task
        assert [gpu.uuid for gpu in block.gpus] == ["GPU-1"] and block.energy_j is not None
        return block.wall_s

    wall = asyncio.run(both())
    assert wall is not None and wall >= 0.02
    assert not _samplers()


@pytest.mark.parametrize("inside", [True, False])
def test_a_coroutine_that_is_cancelled_leaves_no_sampler(inside: bool) -> None:
    """Also while the driver is asked at the start, on a thread that cannot be cancelled."""
    entered = threading.Event()

    async def cancelled() -> None:
        async with performance_context("load", source=Source()):
            entered.set()
            await asyncio.sleep(60)

    async def cancel() -> None:
        task = asyncio.create_task(cancelled())
        while not (entered.is_set() if inside else _samplers()):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert not _samplers()


def test_work_that_torch_has_enqueued_is_waited_for_where_torch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second GPU holds nothing of torch's: waiting for it would make a context there."""
    waited: list[int] = []
    peaks = [5 * GIB]
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 2,
        get_device_properties=lambda index: SimpleNamespace(uuid=str(index)),
        memory_stats=lambda index: {"reserved_bytes.all.current": 6 - 6 * index, "allocated_bytes.all.peak": peaks[-1]},
        synchronize=waited.append,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    with performance_context("step", source=Source()) as block:
        assert waited == [0]
        peaks.append(7 * GIB)
    assert waited == [0, 0]
    assert block.gpus[0].torch_peak_bytes == 7 * GIB
    with performance_context("step", source=Source()) as block:
        pass
    assert block.gpus[0].torch_peak_bytes is None, "it held more before"


def test_without_a_gpu_time_is_measured(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    have(monkeypatch, SimulatedNvml([], errors={"nvmlInit": DRIVER_NOT_LOADED}))
    with caplog.at_level(logging.INFO, logger="drumline"):
        with performance_context("load") as block:
            assert not _samplers()
        with gpu_monitoring_context() as monitor:
            assert monitor.gpus == ()
    assert block.wall_s is not None and block.gpus == ()
    assert block.energy_j is None and block.gpu_memory_bytes is None
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].endswith("s of CPU time")
    assert lines[1:] == ["no GPU was watched: no NVIDIA driver is loaded"]


def test_a_gpu_that_is_not_there_is_refused() -> None:
    for context in (performance_context("load", [2]), gpu_monitoring_context([2])):
        with pytest.raises(HardwareError, match="2 is no GPU of this process"), context:
            raise AssertionError("the block must not run")


def test_gpus_are_watched_during_a_block_and_summed_up(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="drumline"):
        with gpu_monitoring_context([1], every_s=3600.0, source=Source()) as monitor:
            assert _samplers()
        assert not _samplers()
    assert monitor.get_gpu_summary()["GPU-1"].fields["utilization"].mean == 0.5
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("GPU 1 (NVIDIA H100 80GB HBM3): 50% used, at most ") and line.endswith(" J")


def _samplers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "drumline-sampler"]
