from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from drumline.hardware.records import Snapshot
from drumline.monitor import sampler as module
from drumline.monitor.sampler import Sampler
from drumline.monitor.source import MachineSource
from tests.simulated_nvml import DRIVER_NOT_LOADED, SimulatedGpu, SimulatedNvml
from tests.unit.monitor.snapshots import sample


def test_one_session_serves_many_looks_and_is_closed() -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-a"), SimulatedGpu("GPU-b")])
    source = MachineSource(nvml)
    for _ in range(3):
        assert [sample.gpu.uuid for sample in source().gpus] == ["GPU-a", "GPU-b"]
    assert nvml.initialised == 1
    source.close()
    source.close()
    assert nvml.initialised == 0
    assert len(source().gpus) == 2, "a later look opens another"
    source.close()
    assert nvml.initialised == 0


def test_a_machine_without_driver_is_a_value() -> None:
    source = MachineSource(SimulatedNvml([], errors={"nvmlInit": DRIVER_NOT_LOADED}))
    snapshot = source()
    assert snapshot.gpus == () and snapshot.no_gpu and "driver" in snapshot.source
    source.close()


def test_a_sampler_over_a_driver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_S", 0.05)
    monkeypatch.setattr(module, "STUCK_AFTER_S", 0.05)
    nvml = SimulatedNvml([SimulatedGpu("GPU-a")])
    sampler = Sampler(3600.0, source=MachineSource(nvml))
    with sampler:
        assert sampler.look_within(5) is not None
        nvml.gpus[0].hangs.add("nvmlDeviceGetPowerUsage")
        assert sampler.look_within(0.1) is None
        assert sampler.stuck is not None
        assert sampler.latest is not None, "the last that was seen is there, with its age"
        age = sampler.age_s()
        assert age is not None and age >= 0.1
        sampler.stop()
        nvml.release()
    for thread in threading.enumerate():
        if thread.name == "drumline-sampler":
            thread.join(5)
    assert nvml.initialised == 0, "the session is closed when the driver answers again"


def test_a_gpu_that_is_lost_leaves_the_others_seen() -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-a"), SimulatedGpu("GPU-b")])
    with Sampler(3600.0, source=MachineSource(nvml)) as sampler:
        assert sampler.look_within(5) is not None
        nvml.gpus[0].lost_after = 0
        snapshot = sampler.look_within(5)
        assert snapshot is not None
        assert [sample.gpu.uuid for sample in snapshot.gpus] == ["GPU-b"]
        assert len(snapshot.problems) == 1 and "GPU-a" in snapshot.problems[0]
        assert all(len(sampler.history.series(uuid, "power_w")[0]) for uuid in ("GPU-a", "GPU-b"))


def test_others_are_asked_now_and_then_where_nvml_tells_nothing() -> None:
    clock, asked = [0.0], list[str]()

    def others(empty: Snapshot, limit_s: float) -> Snapshot:
        asked.append(empty.source)
        return replace(empty, source="nvidia-smi", gpus=(sample(len(asked)),))

    nvml = SimulatedNvml([SimulatedGpu("GPU-a")], errors={"nvmlInit": DRIVER_NOT_LOADED})
    source = MachineSource(nvml, others=others, clock=lambda: clock[0])
    for clock[0], expected in ((0.0, "GPU-1"), (30.0, "GPU-1"), (60.0, "GPU-2"), (61.0, "GPU-2")):
        assert [seen.gpu.uuid for seen in source().gpus] == [expected]
    assert asked == ["no NVIDIA driver is loaded"] * 2
    source.close()
    nvml.errors.clear()
    assert [seen.gpu.uuid for seen in source().gpus] == ["GPU-a"], "NVML is asked first, each time"
    source.close()
