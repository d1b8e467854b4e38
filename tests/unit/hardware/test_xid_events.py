from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_void_p, cast
from typing import Any

import pynvml
import pytest

from drumline.hardware.xid_events import XidListener, _address
from drumline.hardware.xids import Xid
from tests.simulated_nvml import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    SimulatedGpu,
    SimulatedNvml,
)


@contextmanager
def listener(nvml: SimulatedNvml) -> Iterator[XidListener]:
    with XidListener(nvml, wait_ms=20, again_s=0.02) as heard:
        assert heard.listening.wait(5.0)
        yield heard
    assert nvml.event_sets == [] and nvml.initialised == 0


def wait_for(heard: XidListener, count: int) -> list[Xid]:
    found: list[Xid] = []
    until = time.monotonic() + 5.0
    while len(found) < count and time.monotonic() < until:
        found += heard.drain()
        time.sleep(0.001)
    return found


def test_xids_are_heard_with_gpu_time_and_meaning() -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-a"), SimulatedGpu("GPU-b")])
    began = time.time()
    with listener(nvml) as heard:
        nvml.post_xid("GPU-b", 79)
        nvml.post_xid("GPU-a", 31)
        nvml.post_xid("GPU-b", 79)
        found = wait_for(heard, 3)
        assert heard.drain() == []
    assert [(xid.uuid, xid.code, xid.origin) for xid in found] == [
        ("GPU-b", 79, "event"),
        ("GPU-a", 31, "event"),
        ("GPU-b", 79, "event"),
    ]
    assert found[0].text == "GPU has fallen off the bus"
    assert began <= found[0].time <= time.time()


def test_a_gpu_that_no_longer_tells_its_uuid_is_known_by_its_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimulatedGpu("GPU-a")
    nvml = SimulatedNvml([gpu, SimulatedGpu("GPU-b")])
    made = nvml._handle
    handles: dict[str, Any] = {}
    # As NVML does, the same handle each time.
    monkeypatch.setattr(nvml, "_handle", lambda one, parent=None: handles.setdefault(one.uuid, made(one, parent)))
    with listener(nvml) as heard:
        gpu.errors["nvmlDeviceGetUUID"] = GPU_IS_LOST
        nvml.post_xid("GPU-a", 79)
        (xid,) = wait_for(heard, 1)
    assert xid.uuid == "GPU-a"


def test_two_pointers_to_one_gpu_are_the_same_handle() -> None:
    one, same, other = (cast(c_void_p(address), pynvml.c_nvmlDevice_t) for address in (0x7000, 0x7000, 0x8000))
    assert one is not same
    assert _address(one) == _address(same) != _address(other)


def test_after_a_refusal_the_gpus_that_are_left_are_listened_to() -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-a"), SimulatedGpu("GPU-b")])
    with listener(nvml) as heard:
        nvml.gpus[0].errors["nvmlDeviceRegisterEvents"] = GPU_IS_LOST
        nvml.errors["nvmlEventSetWait_v2"] = GPU_IS_LOST
        until = time.monotonic() + 5.0
        while heard.fault is None and time.monotonic() < until:
            time.sleep(0.001)
        assert heard.fault is not None and "fell off the bus" in heard.fault.reason
        del nvml.errors["nvmlEventSetWait_v2"]
        assert heard.listening.wait(5.0)
        nvml.post_xid("GPU-b", 48)
        (xid,) = wait_for(heard, 1)
        assert (xid.uuid, xid.code) == ("GPU-b", 48)
    assert heard.fault is None


@pytest.mark.parametrize(
    ("function", "code", "reason"),
    [
        ("nvmlInit", DRIVER_NOT_LOADED, "no NVIDIA driver is loaded"),
        ("nvmlEventSetCreate", NOT_SUPPORTED, "not supported"),
        ("nvmlDeviceRegisterEvents", NO_PERMISSION, "no permission"),
        ("nvmlDeviceGetCount", NOT_SUPPORTED, "not supported"),
    ],
)
def test_a_driver_that_tells_of_no_xids_is_a_value(function: str, code: int, reason: str) -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-a")], {function: code})
    heard = XidListener(nvml, wait_ms=20).start()
    assert heard._thread is not None
    heard._thread.join(5.0)
    assert not heard._thread.is_alive()
    assert heard.fault is not None and heard.fault.reason == reason
    assert heard.drain() == [] and nvml.initialised == 0
    heard.stop()


def test_a_machine_without_gpu_is_a_value() -> None:
    nvml = SimulatedNvml([])
    with XidListener(nvml, wait_ms=20) as heard:
        assert heard._thread is not None
        heard._thread.join(5.0)
        assert heard.fault is not None and heard.fault.reason == "no GPU tells of XIDs"


def test_stopping_does_not_wait_for_a_driver_that_hangs() -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-a")])
    nvml.hangs.add("nvmlEventSetWait_v2")
    heard = XidListener(nvml, wait_ms=20).start()
    assert heard.listening.wait(5.0)
    began = time.monotonic()
    heard.stop()
    assert time.monotonic() - began < 1.0
    nvml.release()
    assert heard._thread is not None
    heard._thread.join(5.0)
    assert not heard._thread.is_alive() and nvml.initialised == 0
