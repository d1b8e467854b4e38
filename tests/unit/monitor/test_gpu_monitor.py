from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from drumline.errors import HardwareError
from drumline.hardware.records import Gpu, Snapshot
from drumline.monitor import gpu_monitor as module
from drumline.monitor.gpu_monitor import GPUMonitor
from drumline.monitor.torch_memory import TorchMemory
from tests.simulated_nvml import DRIVER_NOT_LOADED, SimulatedGpu, SimulatedNvml
from tests.unit.monitor.snapshots import sample, snapshot

GIB = 1 << 30


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def machine(num: int = 2) -> SimulatedNvml:
    return SimulatedNvml([SimulatedGpu(f"GPU-{index}") for index in range(num)])


def looks(*rows: dict[str, Any]) -> Callable[[], Snapshot]:
    """A source whose n-th look shows both GPUs with the n-th row, and the last row from then on; a second apart."""
    taken = [0]

    def look() -> Snapshot:
        row, time = rows[min(taken[0], len(rows) - 1)], 1000.0 + taken[0]
        taken[0] += 1
        return snapshot(sample(0, time, **row), sample(1, time, **row), time=time)

    return look


@pytest.fixture
def monitor() -> GPUMonitor:
    rows = [{"utilization": 0.2, "memory_used_bytes": 8 * GIB, "power_w": 100.0, "power_limit_w": 700.0}]
    rows += [{"utilization": 0.6, "memory_used_bytes": 10 * GIB, "power_w": 300.0, "temperature_c": 61.0}]
    return GPUMonitor(source=looks(*rows), nvml=machine(), every_s=3600.0)


def test_info_of_each_gpu(monitor: GPUMonitor) -> None:
    first, second = monitor.get_gpu_info()
    assert (first.index, first.gpu.uuid, second.index, second.gpu.uuid) == (0, "GPU-0", 1, "GPU-1")
    assert first.sample.utilization == 0.2 and first.problem is None
    assert first.activity.kind == "unknown", "without GPM nobody can tell"


def test_cuda_visible_devices_says_which_gpus_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monitor = GPUMonitor(source=looks({"utilization": 0.5}), nvml=machine())
    (info,) = monitor.get_gpu_info()
    assert (info.index, info.gpu.uuid, info.gpu.index) == (0, "GPU-1", 1)
    assert monitor.monitor_gpu_usage(0).gpu.uuid == "GPU-1"
    assert set(monitor.get_gpu_summary()) == {"GPU-1"}
    with pytest.raises(HardwareError, match="1 is no GPU of this process"):
        monitor.monitor_gpu_usage(1)


def test_the_order_is_that_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-0")
    nvml = SimulatedNvml([SimulatedGpu("GPU-0a"), SimulatedGpu("GPU-1a")])
    assert [gpu.uuid for gpu in GPUMonitor(nvml=nvml).gpus] == ["GPU-1a", "GPU-0a"]


def test_torch_knows_its_own_order(monitor: GPUMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA sorts unlike GPUs by speed, which nobody but CUDA knows."""
    monkeypatch.setattr(module, "torch_indexes", lambda gpus: {gpu.uuid: 1 - gpu.index for gpu in gpus})
    monkeypatch.setattr(module, "read_torch_memory", lambda index: TorchMemory(index, 2, 3, 4))
    assert monitor.monitor_gpu_usage(0).gpu.uuid == "GPU-1"
    assert [(info.index, info.torch) for info in monitor.get_gpu_info()] == [
        (1, TorchMemory(1, 2, 3, 4)),
        (0, TorchMemory(0, 2, 3, 4)),
    ]
    assert monitor.get_gpu_summary()["GPU-0"].fields["memory_allocated_bytes"].max == 1.0


def test_gpus_are_named_by_index_or_uuid() -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-aaaa"), SimulatedGpu("GPU-aabb")])
    assert [gpu.uuid for gpu in GPUMonitor([1, "GPU-AAAA"], nvml=nvml).gpus] == ["GPU-aabb", "GPU-aaaa"]
    nothing = GPUMonitor([], nvml=nvml, source=lambda: snapshot())
    assert not nothing.gpus and not nothing.get_gpu_info()
    assert nothing.monitor_gpu_usage(0).gpu.uuid == "GPU-aaaa", "what is not watched can be looked at"
    for name, what in (("GPU-aa", "fits several"), ("GPU-", "is no GPU"), (7, "is no GPU"), (-1, "is no GPU")):
        with pytest.raises(HardwareError, match=what):
            GPUMonitor([name], nvml=nvml)


def test_recording_and_summing_up(monitor: GPUMonitor) -> None:
    assert monitor.record_gpu_metrics([1])[0].gpu.uuid == "GPU-1"
    with monitor.history.phase("evaluation"):
        monitor.record_gpu_metrics()
    summary = monitor.get_gpu_summary()["GPU-0"]
    assert summary.fields["memory_used_bytes"].max == 10 * GIB
    assert summary.fields["utilization"].count == 2 and "fan" not in summary.fields
    assert summary.energy is not None and summary.energy.joules == 200.0
    assert monitor.get_gpu_summary(phase="evaluation")["GPU-0"].fields["utilization"].mean == 0.6


def test_recording_while_it_watches_asks_the_driver_nothing(monitor: GPUMonitor) -> None:
    with monitor:
        monitor.get_gpu_info()
        before = len(monitor.history.series("GPU-0", "utilization")[0])
        assert len(monitor.record_gpu_metrics()) == 2
        assert len(monitor.history.series("GPU-0", "utilization")[0]) == before
        monitor.get_gpu_info()
        assert len(monitor.history.series("GPU-0", "utilization")[0]) == before + 1
    assert not _samplers()


def test_available_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    from drumline.hardware import selection

    seen: list[Any] = []

    def look(gpus: tuple[Gpu, ...], **_: bool) -> selection.Look:
        samples = [sample(gpu.index, memory_free_bytes=(60, 20)[gpu.index] * GIB, processes=()) for gpu in gpus]
        seen.append(gpus)
        return selection.Look(snapshot(*samples))

    monkeypatch.setattr(selection, "look", look)
    monitor = GPUMonitor(nvml=machine())
    assert monitor.get_available_gpus() == [0, 1]
    assert monitor.get_available_gpus(min_free_memory=0.5) == [0]
    assert GPUMonitor([1], nvml=machine()).get_available_gpus() == [1]
    assert len(seen[-1]) == 1


def test_log_lines(monitor: GPUMonitor, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="drumline"):
        monitor.log_gpu_stats("Training start")
    assert [record.getMessage() for record in caplog.records] == [
        f"Training start: GPU {index} (NVIDIA H100 80GB HBM3): 20% used (unknown), 8.0 of 80.0 GiB, 100 of 700 W"
        for index in (0, 1)
    ]


def test_without_a_gpu_everything_answers_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    monitor = GPUMonitor(nvml=SimulatedNvml([], errors={"nvmlInit": DRIVER_NOT_LOADED}))
    with monitor, caplog.at_level(logging.INFO, logger="drumline"):
        assert not _samplers(), "there is nothing to look at"
        assert monitor.get_gpu_info() == monitor.record_gpu_metrics() == ()
        assert monitor.get_available_gpus() == [] and monitor.get_gpu_summary() == {}
        monitor.log_gpu_stats()
    assert [record.getMessage() for record in caplog.records] == ["no GPU: no NVIDIA driver is loaded"]
    with pytest.raises(HardwareError, match="there is none"):
        monitor.monitor_gpu_usage(0)


def test_a_gpu_that_does_not_answer_is_told() -> None:
    def lost() -> Snapshot:
        return Snapshot(5.0, "nvml", (sample(0, utilization=0.1),), ("GPU 1 (GPU-1) left out: the GPU is lost",))

    first, second = GPUMonitor(source=lost, nvml=machine()).get_gpu_info()
    assert first.problem is None
    assert second.problem == "no answer: GPU 1 (GPU-1) left out: the GPU is lost"
    assert second.gpu.uuid == "GPU-1" and second.activity.kind == "unknown"
    assert module.in_words(second).startswith("GPU 1 (NVIDIA H100 80GB HBM3): no answer")


@pytest.mark.parametrize("watches", [False, True])
def test_a_driver_that_hangs_is_a_value(monkeypatch: pytest.MonkeyPatch, watches: bool) -> None:
    monkeypatch.setattr(module, "STUCK_AFTER_S", 0.05)
    go_on = threading.Event()

    def hang() -> Snapshot:
        assert go_on.wait(10)
        return snapshot()

    monitor = GPUMonitor(source=hang, nvml=machine(1))
    try:
        if watches:
            monitor.start_monitoring()
        (info,) = monitor.get_gpu_info()
        assert info.problem is not None and info.problem.startswith("no answer: the driver did not answer")
        assert monitor.record_gpu_metrics()[0].problem is not None
    finally:
        go_on.set()
        monitor.stop_monitoring()
        _drivers_end()


def test_with_the_whole_chain_down_to_nvml() -> None:
    nvml = machine()
    nvml.gpus[1].values["nvmlDeviceGetPowerUsage"] = 512_000
    with GPUMonitor(nvml=nvml, every_s=3600.0) as monitor:
        assert [info.sample.power_w for info in monitor.get_gpu_info()][1] == 512.0
    assert nvml.initialised == 0


def test_a_forked_child_watches_for_itself(monitor: GPUMonitor) -> None:
    with monitor:
        monitor.get_gpu_info()
        child = os.fork()
        if not child:
            with monitor:
                ok = len(monitor.get_gpu_info()) == 2
            os._exit(0 if ok and not _samplers() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _samplers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "drumline-sampler"]


def _drivers_end() -> None:
    for thread in threading.enumerate():
        if thread.name == "drumline-driver":
            thread.join(5)
