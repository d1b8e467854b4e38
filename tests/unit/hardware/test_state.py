"""What may spoil a measurement, read from a scripted NVML, and when it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline.hardware.state import GpuState, MachineState, read_state, warnings_before, warnings_under_load
from tests.simulated_nvml import NO_PERMISSION, SimulatedGpu, SimulatedInstance, SimulatedNvml, SimulatedProcess

CALM = GpuState("GPU-a", 3, 1800, 1980, 2619, 512.0, 700.0, 61, (), 0, 1 << 30)


def test_what_bears_on_a_measurement_is_taken_from_a_sample() -> None:
    gpu = SimulatedGpu("GPU-a", memory_used_bytes=5)
    gpu.values |= {
        "nvmlDeviceGetClockInfo": 1755,
        "nvmlDeviceGetPowerUsage": 698_500,
        "nvmlDeviceGetTemperature": 71,
        "nvmlDeviceGetCurrentClocksEventReasons": 0x1 | 0x4 | 0x20,
    }
    gpu.processes = [SimulatedProcess(1 << 30), SimulatedProcess(2 << 30), SimulatedProcess(3 << 30, graphics=True)]
    nvml = SimulatedNvml([SimulatedGpu("GPU-b"), gpu])
    [state] = read_state(["GPU-a", "GPU-c"], nvml).gpus
    causes = ("power limit", "heat (software)")
    assert state == GpuState("GPU-a", 1, 1755, 1980, 1755, 698.5, 700.0, 71.0, causes, 2, 5)
    assert nvml.initialised == 0


def test_gpus_come_in_the_order_in_which_they_are_named() -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-a"), SimulatedGpu("GPU-b")])
    assert [gpu.index for gpu in read_state(["GPU-b", "GPU-a"], nvml).gpus] == [1, 0]


def test_what_is_not_told_is_none() -> None:
    instance = SimulatedInstance("MIG-a", 1)
    [state] = read_state(["MIG-a"], SimulatedNvml([SimulatedGpu("GPU-m", instances={0: instance})])).gpus
    assert (state.sm_clock_mhz, state.power_w, state.temperature_c, state.throttled_by) == (*[None] * 3, ())
    gpu = SimulatedGpu("GPU-a")
    gpu.errors = {f"nvmlDeviceGet{kind}RunningProcesses": NO_PERMISSION for kind in ("Compute", "Graphics")}
    assert read_state(["GPU-a"], SimulatedNvml([gpu])).gpus[0].processes is None


def test_without_gpus_nvml_is_not_asked() -> None:
    nvml = SimulatedNvml([])
    state = read_state([], nvml)
    assert state.gpus == () and state.cores >= 1 and state.to_json()["gpus"] == []
    assert not nvml.calls


@pytest.mark.parametrize(
    ("gpu", "load", "words"),
    [
        (CALM, 1.0, []),
        (replace(CALM, processes=2), 1.0, ["GPU 3 is not free: 2"]),
        (CALM, 4.5, ["the host is busy: a load of 4.5"]),
    ],
)
def test_warnings_before(gpu: GpuState, load: float, words: list[str]) -> None:
    found = list(warnings_before(MachineState((gpu,), load, cores=8)))
    assert len(found) == len(words) and all(text.startswith(word) for text, word in zip(found, words, strict=True))


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (CALM, []),
        (replace(CALM, throttled_by=("power limit",)), []),
        (replace(CALM, throttled_by=("heat (hardware)",)), ["GPU 3 was slowed down by heat (hardware)"]),
        (
            replace(CALM, sm_clock_mhz=900, throttled_by=("power limit",)),
            ["GPU 3 ran at 900 of 1980 MHz (power limit)"],
        ),
        (replace(CALM, sm_clock_mhz=900), ["GPU 3 ran at 900 of 1980 MHz"]),
        (replace(CALM, sm_clock_mhz=None), []),
    ],
)
def test_warnings_under_load(gpu: GpuState, words: list[str]) -> None:
    assert list(warnings_under_load(MachineState((gpu,), 9.0, cores=8))) == words
