from __future__ import annotations

import json
import time
from typing import Any

import pytest

from drumline.hardware import gpu_facts as module
from drumline.hardware.gpu_facts import gpu_facts
from drumline.hardware.xids import Xid
from tests.simulated_nvml import (
    DRIVER_NOT_LOADED,
    SimulatedGpu,
    SimulatedInstance,
    SimulatedNvml,
    SimulatedProcess,
)


def test_everything_about_the_gpus_is_json() -> None:
    nvml = SimulatedNvml(
        [
            SimulatedGpu("GPU-a", ecc={(1, 0): 1, (1, 1): 1}, processes=[SimulatedProcess(4_000_001)]),
            SimulatedGpu("GPU-b", instances={0: SimulatedInstance("MIG-b", 1)}),
        ]
    )
    xid = Xid(None, "0000:1b:00.0", 31, time.time(), "pid=7", "kernel log")
    found: dict[str, Any] = json.loads(json.dumps(gpu_facts(nvml, lambda since: ([xid], None))))
    assert [(one["uuid"], one["status"]) for one in found["health"]] == [
        ("GPU-a", "fail"),
        ("GPU-b", "ok"),
        ("MIG-b", "ok"),
    ]
    first = found["health"][0]
    assert first["findings"][0]["code"] == "ecc_uncorrected"
    assert first["counters"]["ecc_uncorrected"] == 1
    assert [process["pid"] for process in first["processes"]] == [4_000_001]
    assert first["taken"].startswith("taken: process 4000001, ")
    assert found["health"][2]["taken"] is None
    assert [(one["code"], one["uuid"], one["status"]) for one in found["xids"]] == [(31, "GPU-a", "ok")]
    assert [link["text"] for link in found["topology"]["links"]] == ["NVLink x18"]
    assert [len(row) for row in found["topology"]["table"]] == [5, 5]
    assert (found["kernel_log"], found["gpu_silence"]) == (None, None)


def test_a_machine_without_gpu_is_not_asked_for_its_log() -> None:
    def log(since: float) -> tuple[list[Xid], str | None]:
        raise AssertionError("the log was read")

    assert gpu_facts(SimulatedNvml([], {"nvmlInit": DRIVER_NOT_LOADED}), log) == {
        "health": [],
        "xids": [],
        "kernel_log": None,
        "topology": None,
        "gpu_silence": "no NVIDIA driver is loaded",
    }
    assert gpu_facts(SimulatedNvml([]), log)["gpu_silence"] is None


def test_a_driver_that_hangs_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 0.05)
    nvml = SimulatedNvml([SimulatedGpu("GPU-a", hangs={"nvmlDeviceGetRemappedRows"})])
    found = gpu_facts(nvml)
    nvml.release()
    assert (found["health"], found["gpu_silence"]) == ([], "the driver did not answer within 0.05 s")
