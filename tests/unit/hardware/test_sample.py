from __future__ import annotations

import threading
import time
from dataclasses import fields, replace

import pytest

from drumline.hardware import sample
from drumline.hardware.nvml import FINAL
from drumline.hardware.records import GpuSample, Pipes, Snapshot
from drumline.hardware.sample import HARMLESS, POWER_LIMIT, read_snapshot, take, throttles
from drumline.hardware.session import Session, open_session
from tests.simulated_nvml import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    SimulatedGpu,
    SimulatedInstance,
    SimulatedNvml,
    SimulatedProcess,
)

LINKS = 0xFFFFFFFF


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def working(uuid: str = "GPU-a") -> SimulatedGpu:
    gpu = SimulatedGpu(uuid, memory_used_bytes=30 << 30, gpm={2: 90.0, 5: 60.0, 20: 2.0, 21: 5.0})
    gpu.values |= {
        "nvmlDeviceGetUtilizationRates": type("Rates", (), {"gpu": 97, "memory": 41}),
        "nvmlDeviceGetTemperature": 61,
        "nvmlDeviceGetPowerUsage": 512_345,
        "nvmlDeviceGetFanSpeed": 45,
        "nvmlDeviceGetClockInfo": lambda which: {1: 1755, 2: 2619}[which],
        "nvmlDeviceGetCurrentClocksEventReasons": 0x1 | 0x4 | 0x20,
        "nvmlDeviceGetCurrPcieLinkWidth": 8,
    }
    gpu.fields |= {82: 71, 83: 9_000_000, (138, LINKS): 3, (139, LINKS): 4}
    gpu.processes = [SimulatedProcess(1 << 30, 20 << 30), SimulatedProcess(1 << 30, None, graphics=True)]
    return gpu


def test_every_field_is_read_in_base_units() -> None:
    clock = Clock()
    nvml = SimulatedNvml([working()])
    with Session(nvml, clock=clock) as session:
        take(session)
        clock.now += 2.0
        before = time.time()
        snapshot = take(session)
    (told,) = snapshot.gpus
    assert before <= told.time <= snapshot.time
    assert (snapshot.source, snapshot.problems, snapshot.no_gpu) == ("nvml 580.159.04", (), False)
    assert (told.utilization, told.memory_utilization) == (0.97, 0.41)
    assert (told.memory_used_bytes, told.memory_free_bytes) == (30 << 30, (50 << 30) - (500 << 20))
    assert (told.temperature_c, told.memory_temperature_c, told.slowdown_temperature_c) == (61.0, 71.0, 89.0)
    assert (told.power_w, told.power_limit_w, told.energy_j) == (512.345, 700.0, 9000.0)
    assert (told.fan, told.sm_clock_mhz, told.max_sm_clock_mhz, told.memory_clock_mhz) == (0.45, 1755, 1980, 2619)
    assert told.throttled_by == (POWER_LIMIT, "heat (software)")
    assert (told.pcie_tx_bytes_per_s, told.pcie_rx_bytes_per_s) == (2 << 20, 5 << 20)
    assert (told.pcie_generation, told.max_pcie_generation) == (5, 5)
    assert (told.pcie_width, told.max_pcie_width) == (8, 16)
    assert (told.nvlink_tx_bytes, told.nvlink_rx_bytes) == (3 << 10, 4 << 10)
    assert told.pipes == Pipes(2.0, sm_active=0.9, tensor_active=0.6)
    assert told.processes is not None
    assert [(process.kind, process.memory_bytes) for process in told.processes] == [("compute+graphics", 20 << 30)]
    assert told.refused == {}
    assert all(getattr(told, each.name) is not None for each in fields(GpuSample))


def test_a_first_look_has_no_rates_and_says_so() -> None:
    with open_session(SimulatedNvml([working()])) as session:
        (told,) = take(session).gpus
    assert told.refused == dict.fromkeys(("pipes", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"), "needs two looks")


def test_eight_gpus_in_an_order_of_their_own_cost_few_questions() -> None:
    clock = Clock()
    gpus = [working(f"GPU-{place}") for place in (5, 2, 7, 0, 1, 6, 3, 4)]
    nvml = SimulatedNvml(gpus)
    with Session(nvml, clock=clock) as session:
        take(session)
        nvml.calls.clear()
        clock.now += 1.0
        snapshot = take(session)
    assert [(told.gpu.uuid, told.gpu.index) for told in snapshot.gpus] == [
        (gpu.uuid, place) for place, gpu in enumerate(gpus)
    ]
    questions = sum(count for name, count in nvml.calls.items() if name != "nvmlShutdown") - 16  # samples given back
    assert questions == 8 * 15, nvml.calls


def test_an_instance_has_what_nvml_tells_of_it() -> None:
    gpu = working("GPU-m")
    gpu.values.pop("nvmlDeviceGetUtilizationRates")
    gpu.instances = {2: SimulatedInstance("MIG-a", 3, memory_used_bytes=1 << 30)}
    gpu.processes = [SimulatedProcess(1 << 30, 5, gpu_instance=3), SimulatedProcess(2 << 30, 6, gpu_instance=4)]
    clock = Clock()
    with Session(SimulatedNvml([gpu]), clock=clock) as session:
        take(session)
        clock.now += 1.0
        whole, part = take(session).gpus
    assert (part.gpu.uuid, part.gpu.parent, part.gpu.index) == ("MIG-a", "GPU-m", 0)
    assert (part.memory_used_bytes, part.memory_free_bytes) == (1 << 30, 4 << 30)
    assert part.pipes == Pipes(1.0, sm_active=0.9, tensor_active=0.6)
    assert part.processes is not None and [process.pid for process in part.processes] == [1 << 30]
    assert (part.power_w, part.utilization, part.refused["power_w"]) == (None, None, "not supported")
    assert whole.refused == {"utilization": "not supported", "memory_utilization": "not supported"}
    assert whole.processes is not None and len(whole.processes) == 2


QUESTIONS = {
    "nvmlDeviceGetUtilizationRates": {"utilization", "memory_utilization"},
    "nvmlDeviceGetMemoryInfo": {"memory_used_bytes", "memory_free_bytes"},
    "nvmlDeviceGetTemperature": {"temperature_c"},
    "nvmlDeviceGetTemperatureThreshold": {"slowdown_temperature_c"},
    "nvmlDeviceGetPowerUsage": {"power_w"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_w"},
    "nvmlDeviceGetFanSpeed": {"fan"},
    "nvmlDeviceGetClockInfo": {"sm_clock_mhz", "memory_clock_mhz"},
    "nvmlDeviceGetMaxClockInfo": {"max_sm_clock_mhz"},
    "nvmlDeviceGetCurrPcieLinkGeneration": {"pcie_generation"},
    "nvmlDeviceGetMaxPcieLinkGeneration": {"max_pcie_generation"},
    "nvmlDeviceGetCurrPcieLinkWidth": {"pcie_width"},
    "nvmlDeviceGetMaxPcieLinkWidth": {"max_pcie_width"},
    "nvmlDeviceGetFieldValues": {"memory_temperature_c", "energy_j", "nvlink_tx_bytes", "nvlink_rx_bytes"},
    "nvmlGpmSampleGet": {"pipes"},
}


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, 999])
@pytest.mark.parametrize("function", QUESTIONS)
def test_a_refused_question_takes_its_fields_and_nothing_else(function: str, code: int) -> None:
    clock = Clock()
    gpu = working()
    nvml = SimulatedNvml([gpu])
    with Session(nvml, clock=clock) as session:
        take(session)
        gpu.errors[function] = code
        clock.now += 61.0  # what is fixed is asked anew
        (told,) = take(session).gpus
        clock.now += 1.0
        take(session)
    assert set(told.refused) == {each.name for each in fields(GpuSample) if getattr(told, each.name) is None}
    assert set(told.refused) == QUESTIONS[function]
    if code in FINAL and function != "nvmlDeviceGetMemoryInfo":
        assert nvml.calls[function] - (2 if function == "nvmlDeviceGetClockInfo" else 1) <= 3


def test_both_kinds_of_processes_must_be_refused_for_none() -> None:
    gpu = working()
    gpu.errors = {f"nvmlDeviceGet{kind}RunningProcesses": NO_PERMISSION for kind in ("Compute", "Graphics")}
    with open_session(SimulatedNvml([gpu])) as session:
        (told,) = take(session).gpus
    assert (told.processes, told.refused["processes"]) == (None, "no permission")


@pytest.mark.parametrize("code", [GPU_IS_LOST, RESET_REQUIRED])
@pytest.mark.parametrize("function", QUESTIONS)
def test_a_gpu_that_any_question_finds_lost_is_left_out(function: str, code: int) -> None:
    gpu = working("GPU-b")
    with open_session(SimulatedNvml([working(), gpu, working("GPU-c")])) as session:
        session.found()
        gpu.errors[function] = code
        snapshot = take(session)
        assert [told.gpu.uuid for told in snapshot.gpus] == ["GPU-a", "GPU-c"]
        assert len(snapshot.problems) == 1 and snapshot.problems[0].startswith("GPU 1 (GPU-b) left out: the GPU")
        assert take(session).problems == snapshot.problems


def test_no_half_of_a_gpu_is_handed_on_wherever_it_vanishes() -> None:
    whole = vanishing(None)
    assert [told.gpu.uuid for told in whole.gpus] == ["GPU-a", "GPU-b", "MIG-b"]
    for answered in range(40):
        snapshot = vanishing(answered)
        if len(snapshot.gpus) == 3:
            assert [replace(told, time=0.0) for told in snapshot.gpus] == [
                replace(told, time=0.0) for told in whole.gpus
            ]
            break
        assert [told.gpu.uuid for told in snapshot.gpus] == ["GPU-a"]
        assert len(snapshot.problems) == 1
    assert 15 < answered < 30


def vanishing(answered: int | None) -> Snapshot:
    """The second look at two GPUs, of which the one with MIG is lost after so many answers."""
    clock, gpu = Clock(), working("GPU-b")
    gpu.instances = {0: SimulatedInstance("MIG-b", 1)}
    nvml = SimulatedNvml([working(), gpu])
    with Session(nvml, clock=clock) as session:
        take(session)
        clock.now += 1.0
        gpu.lost_after = answered
        snapshot = take(session)
    assert (nvml.initialised, nvml.samples) == (0, {})
    return snapshot


def test_older_drivers_know_other_names() -> None:
    gpu = working()
    gpu.errors["nvmlDeviceGetCurrentClocksEventReasons"] = 13
    gpu.values["nvmlDeviceGetCurrentClocksThrottleReasons"] = 0x80
    gpu.values["nvmlDeviceGetMemoryInfo"] = _memory_without_version
    with open_session(SimulatedNvml([gpu])) as session:
        (told,) = take(session).gpus
    assert (told.throttled_by, told.memory_used_bytes) == (("power brake",), 7)


def _memory_without_version(version: int | None = None) -> object:
    if version:
        from pynvml import NVMLError

        raise NVMLError(13)
    return type("Memory", (), {"used": 7, "free": 8, "total": 15})


def test_a_slowdown_told_as_a_margin_is_a_temperature() -> None:
    gpu = working()
    gpu.errors["nvmlDeviceGetTemperatureThreshold"] = NOT_SUPPORTED
    gpu.values["nvmlDeviceGetMarginTemperature"] = 26
    gpu.fields[194] = -2
    with open_session(SimulatedNvml([gpu])) as session:
        (told,) = take(session).gpus
        assert told.slowdown_temperature_c == 61 + 26 + 2
        gpu.values |= {"nvmlDeviceGetTemperature": 80, "nvmlDeviceGetMarginTemperature": 7}
        assert take(session).gpus[0].slowdown_temperature_c == 89, "it does not move with the temperature"


def test_without_gpm_pcie_rates_come_from_wide_counters() -> None:
    clock = Clock()
    gpu = working()
    gpu.gpm = None
    gpu.fields |= {197: 1 << 33, 198: 5}
    nvml = SimulatedNvml([gpu])
    with Session(nvml, clock=clock) as session:
        assert take(session).gpus[0].refused["pcie_tx_bytes_per_s"] == "needs two looks"
        gpu.fields |= {197: (1 << 33) + 4000, 198: 2005}
        clock.now += 2.0
        (told,) = take(session).gpus
        assert (told.pcie_tx_bytes_per_s, told.pcie_rx_bytes_per_s) == (2000.0, 1000.0)
        assert "no GPM" in told.refused["pipes"]
        gpu.fields |= {198: 0}
        clock.now += 1.0
        (told,) = take(session).gpus
        assert (told.pcie_tx_bytes_per_s, told.refused["pcie_rx_bytes_per_s"]) == (0.0, "its counter went back")
    assert nvml.calls["nvmlDeviceGetPcieThroughput"] == 0


def test_the_slow_question_for_pcie_is_asked_seldom() -> None:
    clock = Clock()
    gpu = working()
    gpu.gpm = None
    gpu.fields |= {197: 4000, 198: 5}  # these may be counters of 32 bits
    gpu.values["nvmlDeviceGetPcieThroughput"] = lambda way: (7, 9)[way]
    nvml = SimulatedNvml([gpu])
    with Session(nvml, clock=clock) as session:
        for _ in range(20):
            (told,) = take(session).gpus
            assert (told.pcie_tx_bytes_per_s, told.pcie_rx_bytes_per_s) == (7000.0, 9000.0)
            clock.now += 1.0
    assert nvml.calls["nvmlDeviceGetPcieThroughput"] == 2 * 2


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (0x0, ()),
        (0x1 | 0x2 | 0x10 | 0x100, ()),
        (0x4, (POWER_LIMIT,)),
        (0x8 | 0x40, ("hardware slowdown", "heat (hardware)")),
        (0x8 | 0x80, ("hardware slowdown", "power brake")),
    ],
)
def test_idling_and_set_clocks_are_no_throttling(reasons: int, words: tuple[str, ...]) -> None:
    assert throttles(reasons) == words


def test_only_the_power_limit_is_harmless() -> None:
    assert {words for words in sample.THROTTLES.values() if words in HARMLESS} == {POWER_LIMIT}


def test_one_snapshot_leaves_nothing_open() -> None:
    nvml = SimulatedNvml([working()])
    snapshot = read_snapshot(nvml)
    assert [told.gpu.uuid for told in snapshot.gpus] == ["GPU-a"]
    assert (nvml.initialised, nvml.samples) == (0, {})


def test_a_snapshot_with_a_window_has_rates() -> None:
    (told,) = read_snapshot(SimulatedNvml([working()]), window_s=0.11).gpus
    assert told.pipes is not None and told.pipes.tensor_active == 0.6
    assert 0.11 <= told.pipes.window_s < 2.0


def test_a_machine_without_driver_is_said_in_one_line() -> None:
    snapshot = read_snapshot(SimulatedNvml([], {"nvmlInit": DRIVER_NOT_LOADED}))
    assert (snapshot.gpus, snapshot.source, snapshot.no_gpu) == ((), "no NVIDIA driver is loaded", True)


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetPowerUsage"])
def test_a_driver_that_hangs_is_a_reason(function: str) -> None:
    gpu = working()
    nvml = SimulatedNvml([gpu])
    (gpu.hangs if "Power" in function else nvml.hangs).add(function)
    snapshot = read_snapshot(nvml, limit_s=0.05)
    assert (snapshot.gpus, snapshot.source) == ((), "the driver did not answer within 0.05 s")
    assert not snapshot.no_gpu
    assert read_snapshot(nvml, limit_s=5.0).source.startswith("the driver has not answered for")
    assert nvml.hung == 1, "nothing is piled up on a driver that hangs"
    nvml.release()
    for thread in threading.enumerate():
        if thread.name == "drumline-driver":
            thread.join(5.0)
    assert nvml.initialised == 0
    assert len(read_snapshot(nvml).gpus) == 1


def test_without_nvml_others_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = Snapshot(1.0, "no NVIDIA driver", no_gpu=True)
    monkeypatch.setattr(sample, "take", lambda session: empty)
    monkeypatch.setattr("drumline.hardware.sources.ask_others", lambda found, limit_s: Snapshot(2.0, f"{limit_s}"))
    assert read_snapshot(limit_s=3.0).source == "3.0"
