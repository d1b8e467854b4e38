from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from drumline.config.schema import HardwareConfig, RunConfig
from drumline.errors import HardwareError
from drumline.hardware import claims, selection
from drumline.hardware.claims import Claims
from drumline.hardware.inventory import detect
from drumline.hardware.occupants import occupants
from drumline.hardware.records import Gpu, GpuProcess, GpuSample, Hardware, Host, Snapshot
from drumline.hardware.selection import Look
from drumline.launcher.gpus import (
    SETTLE_S,
    doubts,
    leftovers,
    own_hardware,
    take_gpus,
    tell_left_out,
    wanted,
    without_leftovers,
)
from drumline.launcher.spec import MARK
from drumline.launcher.world import World
from drumline.plan.resolve import resolve
from drumline.rundir import ENDING_S
from tests.simulated_nvml import DRIVER_NOT_LOADED, SimulatedGpu, SimulatedInstance, SimulatedNvml, SimulatedProcess

GIB = 1 << 30
A, B, C = "GPU-a0000000", "GPU-b0000000", "GPU-c0000000"


class Machine:
    """Three simulated GPUs, and claims in a folder of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gpus = {uuid: SimulatedGpu(uuid) for uuid in (A, B, C)}
        self.nvml = SimulatedNvml(self.gpus.values())
        self.claims = Claims("runs/mine", folder)
        self.others = Claims("runs/theirs", folder)
        self.paused = 0.0

    def pause(self, seconds: float) -> None:
        self.paused += seconds

    @property
    def hardware(self) -> Hardware:
        return detect({}, self.nvml)

    def take(self, **asked: object) -> Hardware:
        config = HardwareConfig.model_validate(asked)
        return take_gpus(config, self.hardware, self.claims, nvml=self.nvml, pause=self.pause)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(claims, "FOLDER", tmp_path)
    machine = Machine(tmp_path)
    yield machine
    machine.claims.release()
    machine.others.release()


def uuids(hardware: Hardware) -> list[str]:
    return [gpu.uuid for gpu in hardware.gpus]


def test_what_is_free_is_taken_and_claimed(machine: Machine) -> None:
    taken = machine.take()
    assert uuids(taken) == [A, B, C] and taken.left_out == ()
    assert set(machine.claims.held) == {A, B, C} and machine.paused == 0


def test_on_the_cpu_nothing_is_asked_or_claimed(machine: Machine) -> None:
    hardware = machine.hardware
    machine.nvml.calls.clear()
    assert take_gpus(HardwareConfig(device="cpu"), hardware, machine.claims, nvml=machine.nvml) is hardware
    none = Hardware((), Host(1, GIB, "box"), "no NVIDIA driver")
    assert take_gpus(HardwareConfig(count=4), none, machine.claims, nvml=machine.nvml) is none
    assert machine.claims.held == () and not machine.nvml.calls


def test_a_strangers_process_keeps_its_gpu_out_and_the_plan_says_so(machine: Machine) -> None:
    machine.gpus[B].processes = [SimulatedProcess(999_999, 3 * GIB)]
    taken = machine.take()
    assert uuids(taken) == [A, C] and set(machine.claims.held) == {A, C}
    [reason] = taken.left_out
    assert reason.startswith(f"GPU 1 ({B}): taken: process 999999")
    config = RunConfig.model_validate({"train": {"global_batch": 4, "max_steps": 1}})
    assert f"left out: {reason}" in resolve(config, taken).reasons["gpus"]
    assert machine.paused == SETTLE_S  # it might have been one that had just ended


def test_an_unseen_process_that_ends_at_once_takes_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.gpus[B].processes = [SimulatedProcess(999_999, 3 * GIB)]
    monkeypatch.setattr(machine, "pause", lambda seconds: machine.gpus[B].processes.clear())
    assert uuids(machine.take()) == [A, B, C]


def test_a_named_gpu_that_is_taken_is_refused_unless_it_is_to_be_shared(machine: Machine) -> None:
    machine.gpus[B].processes = [SimulatedProcess(999_999, GIB)]
    with pytest.raises(HardwareError, match="process 999999") as raised:
        machine.take(gpus=["1"])
    assert "hardware.taken=use" in raised.value.fix and machine.claims.held == ()
    assert uuids(machine.take(gpus=["1"], taken="use")) == [B]


def test_a_gpu_that_another_launch_has_is_left_to_it(machine: Machine) -> None:
    machine.others.take([A])
    taken = machine.take(count=2)
    assert uuids(taken) == [B, C]
    assert taken.left_out[0].endswith("for runs/theirs")
    third = Claims("third", machine.folder)
    with pytest.raises(HardwareError, match="a GPU is asked for, and none of 3 can be used") as raised:
        take_gpus(HardwareConfig(), machine.hardware, third, nvml=machine.nvml, pause=machine.pause)
    assert raised.value.problem.count("claimed by process") == 3
    machine.claims.release()
    assert uuids(machine.take()) == [B, C]


def test_a_sick_gpu_is_left_out(machine: Machine) -> None:
    machine.gpus[C].values["nvmlDeviceGetRemappedRows"] = [0, 1, 0, 1]  # one row could not be replaced
    taken = machine.take()
    assert uuids(taken) == [A, B]
    assert taken.left_out[0].startswith(f"GPU 2 ({C}): sick: ")
    assert uuids(machine.take(sick="use")) == [A, B, C]


def test_excluded_gpus_and_a_name_that_fits_none(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    assert uuids(machine.take(exclude=["0", "GPU-x"])) == [B, C]
    assert caplog.messages == ["hardware.exclude: 'GPU-x' is no GPU that this process may use"]


def test_a_gpu_that_vanishes_between_two_looks_is_left_out(machine: Machine) -> None:
    hardware = machine.hardware
    machine.nvml.gpus.pop(1)
    taken = take_gpus(HardwareConfig(), hardware, machine.claims, nvml=machine.nvml, pause=machine.pause)
    assert uuids(taken) == [A, C]
    assert "the driver no longer lists it" in taken.left_out[0]


def test_where_the_driver_has_stopped_answering_nothing_is_left_out(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    hardware = machine.hardware
    machine.nvml.errors["nvmlInit"] = DRIVER_NOT_LOADED
    taken = take_gpus(HardwareConfig(), hardware, machine.claims, nvml=machine.nvml, pause=machine.pause)
    assert uuids(taken) == [A, B, C]
    assert "whether GPUs are healthy and free is not known: no NVIDIA driver is loaded" in caplog.text


def test_a_driver_that_hangs_is_not_waited_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hardware = machine.hardware
    monkeypatch.setattr(selection, "LIMIT_S", 0.05)
    machine.gpus[B].hangs.add("nvmlDeviceGetPowerUsage")
    try:
        taken = take_gpus(HardwareConfig(count=2), hardware, machine.claims, nvml=machine.nvml, pause=machine.pause)
    finally:
        machine.nvml.release()
    assert uuids(taken) == [A, B]
    assert "whether GPUs are healthy and free is not known: the driver did not answer within 0.05 s" in caplog.text


def test_an_instance_is_taken_by_its_own_uuid(machine: Machine) -> None:
    machine.gpus[A].instances = {0: SimulatedInstance("MIG-10000000", 7), 1: SimulatedInstance("MIG-20000000", 9)}
    machine.gpus[A].processes = [SimulatedProcess(999_999, GIB, gpu_instance=9)]
    hardware = detect({"CUDA_VISIBLE_DEVICES": "MIG-1"}, machine.nvml)
    taken = take_gpus(HardwareConfig(), hardware, machine.claims, nvml=machine.nvml, pause=machine.pause)
    assert uuids(taken) == ["MIG-10000000"] and machine.claims.held == ("MIG-10000000",)
    busy = detect({"CUDA_VISIBLE_DEVICES": "MIG-2"}, machine.nvml)
    with pytest.raises(HardwareError, match="taken: process 999999"):
        take_gpus(HardwareConfig(), busy, machine.claims, nvml=machine.nvml, pause=machine.pause)


def seen(*processes: GpuProcess) -> Look:
    return Look(Snapshot(0.0, "nvml", (GpuSample(Gpu(A, "H100", 0, 80 * GIB, None), 0.0, processes=processes),)))


LEFT = GpuProcess(999_999, "compute", GIB, "python -m drumline.worker", "me", ours=True)


def test_what_is_left_of_an_earlier_launch_is_waited_for(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    looks = [seen(LEFT), seen(LEFT), seen()]
    without_leftovers(seen(LEFT), machine.claims, lambda: looks.pop(0), machine.pause)
    assert looks == [] and machine.paused == 1.5
    assert caplog.messages == [
        "waiting for an earlier launch to end, whose processes still compute: pid 999999",
    ]
    still = without_leftovers(seen(LEFT), machine.claims, lambda: seen(LEFT), machine.pause)
    assert machine.paused == 1.5 + ENDING_S  # not for ever: then it is no leftover, but one that nobody has claimed for
    assert "process 999999 (python -m drumline.worker)" in (occupants(still.snapshot.gpus[0]) or "")


def test_processes_of_a_launch_that_goes_on_or_of_ones_own_are_not_waited_for() -> None:
    assert leftovers(seen(LEFT).snapshot, set(), set()) == [999_999]
    assert leftovers(seen(LEFT).snapshot, {A}, set()) == []
    assert leftovers(seen(LEFT).snapshot, set(), {999_999}) == []
    assert leftovers(seen(replace(LEFT, ours=False)).snapshot, set(), set()) == []


def test_a_single_process_takes_one_gpu_and_leaves_the_others_to_others(machine: Machine) -> None:
    config = RunConfig.model_validate({"parallel": {"kind": "single"}})
    taken = take_gpus(wanted(config), machine.hardware, machine.claims, nvml=machine.nvml, pause=machine.pause)
    assert uuids(taken) == [A] and machine.claims.held == (A,)
    assert [text.partition(": ")[2] for text in taken.left_out] == ["not needed: 1 were asked for"] * 2
    named = RunConfig.model_validate({"parallel": {"kind": "single"}, "hardware": {"gpus": ["2"]}})
    assert wanted(named).count is None and wanted(RunConfig()).count is None


def test_what_is_left_out_is_told_where_no_plan_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    hardware = Hardware((), Host(1, GIB, "box"), "nvml", ("GPU 1: taken: x", "GPU 2: not needed: 1 were asked for"))
    with caplog.at_level(logging.INFO, "drumline"):
        assert tell_left_out(hardware) is hardware
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "left out: GPU 1: taken: x"),
        ("INFO", "left out: GPU 2: not needed: 1 were asked for"),
    ]


def test_a_process_of_a_foreign_launcher_is_warned_of_its_own_gpu(machine: Machine) -> None:
    machine.gpus[B].processes = [SimulatedProcess(999_999, GIB)]
    asked = HardwareConfig(exclude=["0"], count=1)
    [doubt] = doubts(asked, machine.hardware, [B], {}, machine.nvml)
    assert doubt.startswith(f"GPU 1 ({B}) is used all the same: taken: process 999999")
    assert doubts(asked, machine.hardware, [A], {}, machine.nvml) == []
    assert doubts(asked, machine.hardware, [B], {MARK: "x"}, machine.nvml) == []
    assert doubts(HardwareConfig(taken="use"), machine.hardware, [B], {}, machine.nvml) == []
    assert doubts(asked, machine.hardware, [], {}, machine.nvml) == []


def test_a_process_keeps_what_it_sees_where_it_says_nothing_or_others_choose(machine: Machine) -> None:
    hardware = machine.hardware
    assert own_hardware(HardwareConfig(), hardware, World(), {}) is hardware
    assert own_hardware(HardwareConfig(count=1), hardware, World(size=2, local_size=2), {}) is hardware
    assert own_hardware(HardwareConfig(count=1), hardware, World(), {MARK: "x"}) is hardware
