from __future__ import annotations

import math

import pytest

from drumline.hardware.gpm import FIRST_LOOK, Gpm, GpmReading
from drumline.hardware.nvml import Unavailable
from drumline.hardware.records import Pipes
from drumline.hardware.session import open_session
from tests.simulated_nvml import NO_PERMISSION, NOT_SUPPORTED, SimulatedGpu, SimulatedInstance, SimulatedNvml


class Clock:
    now = 10.0


def busy(uuid: str = "GPU-a") -> SimulatedGpu:
    return SimulatedGpu(uuid, gpm={2: 98.0, 3: 25.0, 5: 75.5, 10: 40.0, 11: 0.0, 12: 1.0, 13: 0.5, 20: 3.0, 21: 100.0})


def test_values_are_the_means_between_two_looks_as_shares() -> None:
    nvml, clock = SimulatedNvml([busy()]), Clock()
    with open_session(nvml) as session:
        gpm, (one,) = Gpm(), session.found()
        assert gpm.look(nvml, one, clock.now) is FIRST_LOOK
        clock.now += 1.0
        assert gpm.look(nvml, one, clock.now) == GpmReading(
            Pipes(1.0, 0.98, 0.25, 0.755, 0.40, fp16_active=0.005, fp32_active=0.01, fp64_active=0.0),
            pcie_tx_bytes_per_s=3 << 20,
            pcie_rx_bytes_per_s=100 << 20,
        )
        nvml.gpus[0].gpm = {2: 10.0}
        clock.now += 2.0
        assert gpm.look(nvml, one, clock.now) == GpmReading(Pipes(2.0, 0.1), None, None)
        gpm.drop(nvml)
    assert nvml.samples == {}


def test_looks_that_are_too_close_give_the_values_before() -> None:
    nvml, clock = SimulatedNvml([busy()]), Clock()
    with open_session(nvml) as session:
        gpm, (one,) = Gpm(), session.found()
        gpm.look(nvml, one, clock.now)
        clock.now += 0.05
        assert gpm.look(nvml, one, clock.now) is FIRST_LOOK
        clock.now += 0.95
        first = gpm.look(nvml, one, clock.now)
        assert isinstance(first, GpmReading) and first.pipes.window_s == pytest.approx(1.0)
        clock.now += 0.05
        assert gpm.look(nvml, one, clock.now) is first
        assert nvml.calls["nvmlGpmSampleGet"] == 2
        gpm.drop(nvml)


def test_what_has_no_meaning_is_none_and_no_share_is_above_one() -> None:
    nvml, clock = SimulatedNvml([SimulatedGpu("GPU-a", gpm={2: 100.3, 3: math.nan, 5: math.inf})]), Clock()
    with open_session(nvml) as session:
        gpm, (one,) = Gpm(), session.found()
        gpm.look(nvml, one, clock.now)
        clock.now += 1.0
        reading = gpm.look(nvml, one, clock.now)
        assert isinstance(reading, GpmReading)
        assert reading.pipes == Pipes(1.0, sm_active=1.0)
        gpm.drop(nvml)


def test_an_instance_is_measured_through_its_gpu() -> None:
    gpu = busy()
    gpu.instances = {0: SimulatedInstance("MIG-a", 4)}
    asked: list[object] = []
    nvml, clock = SimulatedNvml([gpu]), Clock()
    with open_session(nvml) as session:
        _, one = session.found()
        gpm = Gpm()
        gpm.look(nvml, one, clock.now)
        clock.now += 1.0
        assert isinstance(gpm.look(nvml, one, clock.now), GpmReading)
        gpu.values["nvmlGpmMigSampleGet"] = lambda instance, sample: asked.append(instance)
        clock.now += 1.0
        gpm.look(nvml, one, clock.now)
        gpm.drop(nvml)
    assert asked == [4] and nvml.calls["nvmlGpmSampleGet"] == 0


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (SimulatedGpu("GPU-a", gpm=None), "no GPM"),
        (SimulatedGpu("GPU-a", errors={"nvmlGpmQueryDeviceSupport": NOT_SUPPORTED}), "not supported"),
        (SimulatedGpu("GPU-a", errors={"nvmlGpmSampleGet": NO_PERMISSION}), "no permission"),
    ],
)
def test_a_refusal_is_a_value_and_leaves_nothing_behind(gpu: SimulatedGpu, words: str) -> None:
    nvml = SimulatedNvml([gpu])
    with open_session(nvml) as session:
        gpm, (one,) = Gpm(), session.found()
        answer = gpm.look(nvml, one, 0.0)
        assert isinstance(answer, Unavailable) and words in answer.reason
        gpm.drop(nvml)
    assert nvml.samples == {}


def test_a_binding_without_gpm_and_a_driver_without_memory_are_values() -> None:
    nvml = SimulatedNvml([busy()])
    with open_session(nvml) as session:
        (one,) = session.found()
        nvml.missing.add("c_nvmlGpmMetricsGet_t")
        answer = Gpm().look(nvml, one, 0.0)
        assert isinstance(answer, Unavailable) and "too old" in answer.reason
        nvml.missing.clear()
        nvml.errors["nvmlGpmSampleAlloc"] = 20
        assert Gpm().look(nvml, one, 0.0) == Unavailable("the driver is out of memory", 20)
    assert nvml.samples == {}


def test_a_look_that_fails_in_between_begins_a_new_window() -> None:
    nvml, clock = SimulatedNvml([busy()]), Clock()
    with open_session(nvml) as session:
        gpm, (one,) = Gpm(), session.found()
        gpm.look(nvml, one, clock.now)
        nvml.gpus[0].errors["nvmlGpmSampleGet"] = 999
        clock.now += 1.0
        assert isinstance(gpm.look(nvml, one, clock.now), Unavailable)
        nvml.gpus[0].errors.clear()
        clock.now += 1.0
        assert gpm.look(nvml, one, clock.now) is FIRST_LOOK
        clock.now += 1.0
        reading = gpm.look(nvml, one, clock.now)
        assert isinstance(reading, GpmReading) and reading.pipes.window_s == 1.0
        gpm.drop(nvml)
