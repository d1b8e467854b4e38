"""The machine as devices for jobs: GPUs with reasons, slots, and a driver that is late."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from drumline.config.service import SchedulingConfig, ServiceConfig
from drumline.hardware.claims import Claims
from drumline.hardware.health import Finding, Verdict
from drumline.hardware.nvml import Reading, Unavailable
from drumline.hardware.records import Gpu, GpuProcess, GpuSample, Snapshot
from drumline.hardware.selection import Look
from drumline.hardware.topology import Link, Topology
from drumline.jobs import devices as module
from drumline.jobs.devices import LATE_S, DeviceWatch, devices_of, read_inventory, slots
from drumline.jobs.records import Device, Inventory

GIB = 1 << 30
OURS = GpuProcess(5, "compute", 10 * GIB, ours=True)
STRANGER = GpuProcess(6, "compute", 10 * GIB, name="python", user="bob")


def sample(number: int, *processes: GpuProcess) -> GpuSample:
    gpu = Gpu(f"GPU-{number}", "H100", number, 80 * GIB, (9, 0))
    used = sum(each.memory_bytes or 0 for each in processes)
    return GpuSample(gpu, 0.0, memory_used_bytes=used, memory_free_bytes=80 * GIB - used, processes=processes)


def look_of(*samples: GpuSample, **values: Any) -> Look:
    return Look(Snapshot(0.0, "nvml", samples), **values)


def test_what_a_job_of_ours_holds_is_free_memory_and_a_stranger_is_a_reason() -> None:
    found = devices_of(look_of(sample(0, OURS), sample(1, STRANGER), sample(2)), {}, set(), None)
    assert [device.memory_bytes for device in found] == [80 * GIB, 70 * GIB, 80 * GIB]
    assert [device.unusable is None for device in found] == [True, False, True]
    assert "process 6 (python) of bob" in (found[1].unusable or "")


def test_sick_claimed_excluded_and_gone_ones_are_told() -> None:
    finding = Finding("xid_79", "fail", "it fell off the bus", "restart", "NVIDIA")
    verdicts = {"GPU-0": Verdict("GPU-0", "fail", (finding,))}
    look = look_of(sample(0), sample(1), sample(2), verdicts=verdicts, gone={"GPU-3": "lost"})
    found = devices_of(look, {"GPU-1": "claimed by process 7 of bob"}, {"GPU-2"}, None)
    reasons = {device.id: device.unusable for device in found}
    assert reasons == {
        "GPU-0": "sick: it fell off the bus",
        "GPU-1": "claimed by process 7 of bob",
        "GPU-2": "the service excludes it",
        "GPU-3": "lost",
    }


def test_gpus_that_reach_each_other_by_nvlink_are_one_group() -> None:
    uuids = [f"GPU-{number}" for number in range(4)]
    wires = {("GPU-0", "GPU-2"): 12, ("GPU-1", "GPU-3"): 12}
    links = tuple(
        Link(a, b, nvlinks=wires.get((a, b), 0), level=20) for i, a in enumerate(uuids) for b in uuids[i + 1 :]
    )
    look = look_of(*(sample(number) for number in range(4)))
    assert [device.group for device in devices_of(look, {}, set(), Topology(links=links))] == [0, 1, 0, 1]


def test_without_nvlink_one_host_bridge_is_a_group_and_without_any_answer_the_machine_is() -> None:
    links = (Link("GPU-0", "GPU-1", level=30), Link("GPU-0", "GPU-2", level=50), Link("GPU-1", "GPU-2", level=50))
    look = look_of(*(sample(number) for number in range(3)))
    assert [device.group for device in devices_of(look, {}, set(), Topology(links=links))] == [0, 0, 2]
    assert [device.group for device in devices_of(look, {}, set(), None)] == [0, 0, 0]


def test_a_machine_without_gpu_has_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ServiceConfig(node="here", scheduling=SchedulingConfig(cpu_slots=3))
    with_fault(monkeypatch, Unavailable("no NVIDIA driver", 12))
    found = read_inventory(config)
    assert (found.node, found.has_gpus, found.devices) == ("here", False, slots(3))
    assert [device.id for device in slots(2)] == ["cpu:0", "cpu:1"]


def test_a_driver_that_does_not_answer_makes_no_slots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_fault(monkeypatch, Unavailable("the driver did not answer within 20 s"))
    monkeypatch.setattr(module, "GPU_FOLDER", tmp_path)
    found = read_inventory(ServiceConfig(node="here"))
    assert (found.has_gpus, found.devices) == (True, ())


def test_claims_of_the_services_own_jobs_are_no_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    claimed = {
        "GPU-0": f"claimed by process 7 ({tmp_path}/service/jobs/job-1/run)",
        "GPU-1": "claimed by process 8 (/home/bob/run)",
    }
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(module, "look", lambda gpus: look_of(sample(0), sample(1)))
    monkeypatch.setattr(Claims, "choosing", lambda self: nullcontext())
    monkeypatch.setattr(Claims, "of_others", lambda self, uuids: claimed)
    gpus = [sample(number).gpu for number in range(2)]
    for data_dir in (Path("~/service"), tmp_path / "service"):
        found = module._gpus(gpus, ServiceConfig(node="here", data_dir=data_dir))
        assert [device.unusable for device in found] == [None, claimed["GPU-1"]]


def with_fault(monkeypatch: pytest.MonkeyPatch, fault: Unavailable) -> None:
    """A machine whose driver says so."""
    reading = Reading((), fault.reason, fault=fault)
    monkeypatch.setattr(module, "read_machine", lambda: reading)


def test_a_watch_answers_at_once_and_says_when_the_driver_is_late() -> None:
    now = [100.0]
    let_go, entered = threading.Event(), threading.Event()

    def read(config: ServiceConfig) -> Inventory:
        entered.set()
        let_go.wait(10)
        return Inventory("here", now[0], (Device("GPU-0"), Device("GPU-1", unusable="sick")), has_gpus=True)

    watch = DeviceWatch(ServiceConfig(node="here"), read, lambda: now[0])
    watch.start()
    assert entered.wait(10)
    assert watch() == Inventory("here", 0.0)
    let_go.set()
    assert watch.wait(10)
    limit = time.monotonic() + 10
    while watch().time == 0.0 and time.monotonic() < limit:
        time.sleep(0.01)
    assert [device.unusable for device in watch().devices] == [None, "sick"]
    watch.close()
    now[0] += LATE_S + 5
    assert [device.unusable for device in watch().devices] == ["the driver has not answered for 50 s", "sick"]


def test_a_look_that_fails_is_not_the_last() -> None:
    tries: list[int] = []

    def read(config: ServiceConfig) -> Inventory:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("once")
        return Inventory("here", 5.0)

    watch = DeviceWatch(ServiceConfig(node="here"), read, lambda: 6.0, every_s=0.01)
    watch.start()
    assert watch.wait(10)
    watch.close()
    assert watch().time == 5.0
