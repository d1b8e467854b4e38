"""Checks of the service's health: what is wrong, and how much."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumline.errors import StoreError
from drumline.hardware.health import Finding, Verdict
from drumline.hardware.records import Gpu, GpuSample, Snapshot
from drumline.jobs.records import Device, Inventory
from drumline.service.checks import (
    GIB,
    Check,
    check_disk,
    check_driver,
    check_gpus,
    check_nodes,
    check_store,
    check_supervisor,
    gravest,
)
from drumline.service.machine import MachineLook

NONE = MachineLook(Snapshot(1.0, "no NVIDIA driver", no_gpu=True))
ONE = MachineLook(Snapshot(1.0, "nvml 580", (GpuSample(Gpu("GPU-a", "H100", 0, 80 * GIB, (9, 0)), 1.0),)))


def test_the_gravest_counts() -> None:
    checks = [Check("a", "ok", ""), Check("b", "failing", ""), Check("c", "degraded", "")]
    assert (gravest(checks), gravest(checks[::2]), gravest([])) == ("failing", "degraded", "ok")


def test_a_store_that_fails_says_why_and_a_slow_one_is_degraded() -> None:
    def broken() -> object:
        raise StoreError("the disk is full", "make room")

    assert check_store(broken) == Check("store", "failing", "the disk is full", "make room")
    ticks = iter([0.0, 1.5, 2.0, 2.001])
    assert check_store(lambda: None, lambda: next(ticks)).status == "degraded"
    assert check_store(lambda: None, lambda: next(ticks)) == Check("store", "ok", "answers in 1 ms")


@pytest.mark.parametrize(("beat", "status"), [(None, "failing"), (80.0, "failing"), (95.0, "ok"), (200.0, "ok")])
def test_a_supervisor_gives_signs_of_life(beat: float | None, status: str) -> None:
    assert check_supervisor(beat, 100.0).status == status


def test_other_machines_that_do_not_answer_are_named() -> None:
    assert check_nodes({}).status == "ok"
    found = check_nodes({"n2": 2, "n1": 1})
    assert (found.status, found.message) == ("degraded", "n1 does not answer (1 job), n2 does not answer (2 jobs)")
    assert "give it up" in found.fix


@pytest.mark.parametrize(("free", "status"), [(0.5, "failing"), (5.0, "degraded"), (50.0, "ok")])
def test_room_on_the_disk(free: float, status: str) -> None:
    found = check_disk(Path("/data"), lambda _: (100 * GIB, 0, int(free * GIB)))
    assert (found.status, bool(found.fix)) == (status, status != "ok")


def test_a_disk_that_is_gone() -> None:
    assert check_disk(Path("/no/such/folder")).status == "failing"


@pytest.mark.parametrize(
    ("look", "status"),
    [
        (NONE, "ok"),
        (ONE, "ok"),
        (MachineLook(ONE.snapshot, late="the driver has not answered for 9 s"), "degraded"),
        (MachineLook(Snapshot(1.0, "the driver does not fit its library")), "degraded"),
        (MachineLook(Snapshot(1.0, "nvml", ONE.snapshot.gpus, problems=("GPU 1: lost",))), "degraded"),
    ],
)
def test_a_driver_that_is_late_or_broken_is_told(look: MachineLook, status: str) -> None:
    assert check_driver(look).status == status


def test_devices_that_jobs_cannot_have() -> None:
    slots = Inventory("here", 1.0, (Device("cpu:0"), Device("cpu:1")))
    assert check_gpus(NONE, slots, {}).message == "2 slots, all of them fit for jobs"
    assert check_gpus(NONE, Inventory("here", 0.0), {}).status == "degraded"
    assert check_gpus(NONE, Inventory("here", 1.0), {}).status == "failing"
    taken = Inventory("here", 1.0, (Device("GPU-a", unusable="taken: process 7 (secret) of mallory"),), has_gpus=True)
    found = check_gpus(ONE, taken, {})
    assert (found.status, "mallory" in found.message) == ("failing", False)


def test_a_gpu_that_needs_care_is_degraded() -> None:
    verdict = Verdict("GPU-a", "warn", (Finding("heat", "warn", "it is hot", "cool it", "NVML"),))
    found = check_gpus(
        MachineLook(ONE.snapshot, verdicts={"GPU-a": verdict}),
        Inventory("here", 1.0, (Device("GPU-a"),), has_gpus=True),
        {},
    )
    assert (found.status, "it is hot" in found.message) == ("degraded", True)
