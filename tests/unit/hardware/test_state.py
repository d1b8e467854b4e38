"""What may spoil a measurement, read from a scripted NVML, and when it is told."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from drumline.hardware.state import GpuState, MachineState, read_state, warnings_before, warnings_under_load

CALM = GpuState("GPU-a", 3, 1800, 1980, 2619, 512.0, 700.0, 61, (), 0, 1 << 30)


class Scripted:
    """Answers for one GPU; a name that is missing is refused, as an old driver or a MIG instance does."""

    NVMLError = pynvml.NVMLError

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.open = 0

    def __getattr__(self, function: str) -> Any:
        def call(*arguments: Any) -> Any:
            if function == "nvmlInit":
                self.open += 1
            elif function == "nvmlShutdown":
                self.open -= 1
            elif function == "nvmlDeviceGetHandleByUUID" and arguments == ("GPU-a",):
                return "handle"
            elif function in self.answers:
                return self.answers[function]
            else:
                raise pynvml.NVMLError(3)
            return None

        return call


def test_a_gpu_is_read_in_units_for_people() -> None:
    nvml = Scripted(
        nvmlDeviceGetIndex=3,
        nvmlDeviceGetClockInfo=1755,
        nvmlDeviceGetMaxClockInfo=1980,
        nvmlDeviceGetPowerUsage=698_500,
        nvmlDeviceGetEnforcedPowerLimit=700_000,
        nvmlDeviceGetTemperature=71,
        nvmlDeviceGetCurrentClocksEventReasons=0x1 | 0x4 | 0x20,
        nvmlDeviceGetComputeRunningProcesses=[object(), object()],
        nvmlDeviceGetMemoryInfo=SimpleNamespace(used=5),
    )
    [gpu] = read_state(["GPU-a"], nvml).gpus
    assert gpu == GpuState(
        "GPU-a",
        3,
        1755,
        1980,
        1755,
        698.5,
        700.0,
        71,
        ("power limit", "heat (software)"),
        processes=2,
        memory_used_bytes=5,
    )
    assert nvml.open == 0


def test_an_old_driver_calls_the_reasons_otherwise() -> None:
    [gpu] = read_state(["GPU-a"], Scripted(nvmlDeviceGetCurrentClocksThrottleReasons=0x80)).gpus
    assert gpu.throttled_by == ("power brake",)


def test_what_is_not_told_is_none_and_a_gpu_that_is_gone_is_left_out() -> None:
    [gpu] = read_state(["GPU-a", "GPU-b"], Scripted()).gpus
    assert (gpu.sm_clock_mhz, gpu.power_w, gpu.temperature_c, gpu.processes, gpu.throttled_by) == (*[None] * 4, ())


def test_without_gpus_nvml_is_not_asked() -> None:
    state = read_state([], Scripted())
    assert state.gpus == () and state.cores >= 1 and state.to_json()["gpus"] == []


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
