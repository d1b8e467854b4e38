from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from drumline.hardware import sample, session
from drumline.hardware.health import read_verdicts
from drumline.hardware.nvml import INIT_LIMIT_S, Unavailable
from drumline.hardware.sample import read_snapshot
from drumline.monitor import one_look
from drumline.monitor.one_look import look_once
from tests.simulated_nvml import SimulatedGpu, SimulatedNvml


def simulate(monkeypatch: pytest.MonkeyPatch, *gpus: SimulatedGpu, **errors: int) -> SimulatedNvml:
    nvml = SimulatedNvml(gpus, errors)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def test_what_a_gpu_does_is_told_by_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimulatedGpu("GPU-a", values={"nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=100, memory=0)})
    nvml = simulate(monkeypatch, gpu)
    scene = look_once().scene()
    # A kernel runs all the time, and neither a unit nor a link does anything.
    assert scene.activity(scene.snapshot.gpus[0]) == "waiting"
    assert scene.nvlinks == {"GPU-a": 18}
    assert scene.verdicts["GPU-a"].status == "ok"
    assert nvml.initialised == 0 and not nvml.samples


def test_a_gpu_that_is_lost_in_between_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = SimulatedGpu("GPU-b")
    powers = iter([70_000])

    def power() -> int:
        found = next(powers, None)
        if found is None:  # at the second look
            lost.lost_after = 0
        return found or 0

    lost.values["nvmlDeviceGetPowerUsage"] = power
    simulate(monkeypatch, SimulatedGpu("GPU-a"), lost)
    look = look_once()
    assert [sample.gpu.uuid for sample in look.snapshot.gpus] == ["GPU-a"]
    assert len(look.snapshot.problems) == 1 and "GPU-b" in look.snapshot.problems[0]


def test_gpus_may_take_as_long_to_start_as_the_driver_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without persistence mode a GPU that nobody uses is initialised by the question for its handle."""
    limits: list[float] = []

    def late(limit_s: float, *_: object) -> Unavailable:
        limits.append(limit_s)
        return Unavailable("late")

    simulate(monkeypatch, SimulatedGpu("GPU-a"))
    for module in (one_look, sample, session):
        monkeypatch.setattr(module, "within", late)
    look_once()
    assert read_snapshot().source == "late" and read_verdicts() == {}
    assert len(limits) > 4 and min(limits) >= INIT_LIMIT_S


def test_a_driver_that_refuses_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, nvmlInit=18)
    look = look_once()
    assert not look.snapshot.gpus and not look.snapshot.no_gpu
    assert "different versions" in look.snapshot.source
    assert look.topology.why_not == look.snapshot.source
