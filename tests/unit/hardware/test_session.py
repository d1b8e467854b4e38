from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from drumline.hardware.nvml import Unavailable
from drumline.hardware.session import RECHECK_S, Session, open_session
from tests.simulated_nvml import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    VERSION_MISMATCH,
    SimulatedGpu,
    SimulatedInstance,
    SimulatedNvml,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Item:
    """Something kept of a GPU."""

    dropped: list[Any]

    def __init__(self) -> None:
        self.dropped = []

    def drop(self, nvml: Any) -> None:
        self.dropped.append(nvml.initialised)


def uuids(session: Session) -> list[str]:
    return [gpu.uuid for gpu, _ in session.devices()]


def test_nvml_is_started_once_and_closed_once() -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-b"), SimulatedGpu("GPU-a")])
    with open_session(nvml) as session:
        assert (session.fault, session.driver, nvml.initialised) == (None, "580.159.04", 1)
        assert [(gpu.uuid, gpu.index, gpu.pci_address) for gpu, _ in session.devices()] == [
            ("GPU-b", 0, "0000:1b:00.0"),
            ("GPU-a", 1, "0000:2b:00.0"),
        ]
        assert (session.source, session.no_gpu, session.problems) == ("nvml 580.159.04", False, ())
        session.close()
    assert (nvml.initialised, nvml.calls["nvmlInit"], nvml.calls["nvmlShutdown"]) == (0, 1, 1)
    assert session.devices() == []
    assert session.ask("nvmlDeviceGetCount") == Unavailable("the session is closed")


def test_instances_follow_their_gpu_and_name_it() -> None:
    gpu = SimulatedGpu("GPU-m", instances={0: SimulatedInstance("MIG-a", 1), 3: SimulatedInstance("MIG-b", 5, 1)})
    with open_session(SimulatedNvml([gpu, SimulatedGpu("GPU-x")])) as session:
        found = session.found()
    assert [(one.gpu.uuid, one.gpu.parent, one.gpu.index, one.mig) for one in found] == [
        ("GPU-m", None, 0, True),
        ("MIG-a", "GPU-m", 0, False),
        ("MIG-b", "GPU-m", 0, False),
        ("GPU-x", None, 1, False),
    ]
    assert [(one.gpu_instance, one.compute_instance) for one in found] == [(None, None), (1, 0), (5, 1), (None, None)]
    assert found[1].parent is found[0].handle


@pytest.mark.parametrize(
    ("code", "words", "no_gpu"),
    [
        (DRIVER_NOT_LOADED, "no NVIDIA driver is loaded", True),
        (LIBRARY_NOT_FOUND, "no NVIDIA driver", True),
        (VERSION_MISMATCH, "different versions", False),
        (NO_PERMISSION, "no permission", False),
    ],
)
def test_a_driver_that_does_not_start_is_a_fault(code: int, words: str, no_gpu: bool) -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-a")], {"nvmlInit": code})
    with open_session(nvml) as session:
        assert session.devices() == []
        assert session.fault is not None and session.fault.code == code
        assert words in session.source and session.no_gpu is no_gpu
    assert nvml.calls["nvmlShutdown"] == 0


def test_gpus_that_may_not_be_counted_and_a_machine_without_any() -> None:
    with open_session(SimulatedNvml([SimulatedGpu("GPU-a")], {"nvmlDeviceGetCount": NO_PERMISSION})) as session:
        assert session.devices() == []
        assert (session.source, session.no_gpu) == ("nvml 580.159.04: no permission", False)
    with open_session(SimulatedNvml([])) as session:
        assert session.devices() == []
        assert (session.source, session.no_gpu) == ("nvml 580.159.04: no GPU", True)


def test_a_driver_that_comes_later_is_found() -> None:
    nvml, clock = SimulatedNvml([SimulatedGpu("GPU-a")], {"nvmlInit": DRIVER_NOT_LOADED}), Clock()
    with Session(nvml, clock=clock) as session:
        assert uuids(session) == []
        nvml.errors.clear()
        clock.now = RECHECK_S - 1
        assert uuids(session) == []
        clock.now = RECHECK_S
        assert uuids(session) == ["GPU-a"]
        assert session.fault is None
    assert nvml.initialised == 0


ANEW = "once it is reset, a program that is started anew sees it"


def test_a_lost_gpu_is_left_out_at_once_and_found_when_it_is_back() -> None:
    gpus = [SimulatedGpu("GPU-a"), SimulatedGpu("GPU-m", instances={0: SimulatedInstance("MIG-a", 1)})]
    nvml, clock = SimulatedNvml(gpus), Clock()
    with Session(nvml, clock=clock) as session:
        _, lost, _ = session.found()
        kept = session.kept(lost, Item)
        gpus[1].lost_after = 0
        session.lose(lost, session.live(lost, "nvmlDeviceGetPowerUsage"))
        assert uuids(session) == ["GPU-a"]
        assert session.problems == (f"GPU 1 (GPU-m) left out: the GPU is lost: it fell off the bus; {ANEW}",)
        assert kept.dropped == [1]
        clock.now += RECHECK_S
        assert uuids(session) == ["GPU-a"]
        assert nvml.calls["nvmlInit"] == 2, "only a library that starts anew sees a GPU come back"
        assert session.problems == (f"GPU 1 left out: the GPU is lost: it fell off the bus; {ANEW}",)
        assert session.lost["GPU-m"].code == GPU_IS_LOST
        gpus[1].lost_after = None
        clock.now += RECHECK_S
        assert uuids(session) == ["GPU-a", "GPU-m", "MIG-a"]
        assert not session.lost
        assert not session.problems
    assert nvml.initialised == 0


def test_a_gpu_that_is_no_longer_counted_is_told() -> None:
    nvml, clock = SimulatedNvml([SimulatedGpu("GPU-a"), SimulatedGpu("GPU-b")]), Clock()
    with Session(nvml, clock=clock) as session:
        assert uuids(session) == ["GPU-a", "GPU-b"]
        del nvml.gpus[0]
        clock.now = RECHECK_S
        assert uuids(session) == ["GPU-b"]
        assert session.problems == (f"GPU 0 (GPU-a) left out: it is no longer there; {ANEW}",)


def test_fixed_facts_and_refusals_that_stay_are_asked_once() -> None:
    gpu = SimulatedGpu("GPU-a", errors={"nvmlDeviceGetPowerUsage": NO_PERMISSION})
    nvml, clock = SimulatedNvml([gpu]), Clock()
    with Session(nvml, clock=clock) as session:
        (one,) = session.found()
        for _ in range(3):
            assert session.fixed(one, "nvmlDeviceGetMaxClockInfo", 1) == 1980
            assert session.live(one, "nvmlDeviceGetClockInfo", 1) == 345
            assert session.live(one, "nvmlDeviceGetFanSpeed").code == NOT_SUPPORTED
            assert session.live(one, "nvmlDeviceGetPowerUsage").code == NO_PERMISSION
        asked = ("nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetClockInfo", "nvmlDeviceGetFanSpeed")
        assert [nvml.calls[function] for function in (*asked, "nvmlDeviceGetPowerUsage")] == [1, 3, 1, 3]
        gpu.values |= {"nvmlDeviceGetMaxClockInfo": 1755, "nvmlDeviceGetFanSpeed": 40}
        clock.now = RECHECK_S
        (one,) = session.found()
        assert session.fixed(one, "nvmlDeviceGetMaxClockInfo", 1) == 1755
        assert session.live(one, "nvmlDeviceGetFanSpeed") == 40


def test_a_function_that_the_binding_lacks_is_refused() -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-a")])
    nvml.missing.add("nvmlDeviceGetPowerUsage")
    with open_session(nvml) as session:
        assert "too old" in session.live(session.found()[0], "nvmlDeviceGetPowerUsage").reason


def test_a_forked_child_starts_anew_and_gives_nothing_of_its_parent_back(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-a")])
    session = Session(nvml)
    (parents,) = session.found()
    kept = session.kept(parents, Item)
    child = os.getpid() + 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: child)
        # The scripted NVML refuses a handle of the parent, and any call before nvmlInit in this process.
        (childs,) = session.found()
        assert session.live(childs, "nvmlDeviceGetPowerUsage") == 70_000
        assert session.kept(childs, Item) is not kept
        session.close()
        assert (nvml.calls["nvmlInit"], nvml.calls["nvmlShutdown"]) == (2, 1)
    assert kept.dropped == []


def test_a_child_that_never_used_it_closes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-a")])
    session = Session(nvml)
    session.found()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        session.close()
    assert nvml.calls["nvmlShutdown"] == 0


def test_closing_does_not_wait_for_a_driver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drumline.hardware.session.CLOSE_LIMIT_S", 0.05)
    nvml = SimulatedNvml([SimulatedGpu("GPU-a")])
    session = Session(nvml)
    nvml.hangs.add("nvmlShutdown")
    session.close()
    assert nvml.initialised == 1 and nvml.hung == 1
    nvml.release()
    for thread in threading.enumerate():
        if thread.name == "drumline-driver":
            thread.join(5.0)
    assert nvml.initialised == 0


def test_a_driver_that_hangs_at_start_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drumline.hardware.session.INIT_LIMIT_S", 0.05)
    nvml = SimulatedNvml([SimulatedGpu("GPU-a")])
    nvml.hangs.add("nvmlInit")
    with open_session(nvml) as session:
        assert session.source == "the driver did not answer within 0.05 s"
        assert session.devices() == [] and not session.no_gpu
    nvml.release()
