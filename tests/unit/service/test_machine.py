"""Looks at the GPUs for many: shared, fresh, and late ones that delay nobody twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from drumline.hardware.health import Verdict
from drumline.hardware.records import Gpu, GpuSample, Snapshot
from drumline.service.machine import FRESH_S, Machine, MachineLook

GPUS = (
    Gpu("GPU-aaaa1111", "NVIDIA H100", 0, 80 << 30, (9, 0)),
    Gpu("GPU-aaab2222", "NVIDIA H100", 1, 80 << 30, (9, 0)),
)


class Source:
    """GPUs that answer, hang until they are let go, or fail."""

    def __init__(self) -> None:
        self.looks = 0
        self.go = threading.Event()
        self.go.set()
        self.failure: Exception | None = None
        self.closed = False

    def __call__(self) -> Snapshot:
        self.looks += 1
        self.go.wait()
        if self.failure is not None:
            raise self.failure
        now = float(self.looks)
        return Snapshot(now, "nvml 580", tuple(GpuSample(gpu, now, utilization=0.5) for gpu in GPUS))

    def close(self) -> None:
        self.closed = True


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def hanging(source: Source) -> Iterator[None]:
    source.go.clear()
    try:
        yield
    finally:
        source.go.set()


@pytest.fixture
def source() -> Source:
    return Source()


def test_a_look_tells_what_is_there(source: Source) -> None:
    machine = Machine(5.0, source=source, verdicts=lambda: {GPUS[0].uuid: Verdict(GPUS[0].uuid, "ok")})
    look = machine.look()
    assert [sample.gpu for sample in look.snapshot.gpus] == list(GPUS)
    assert look.late is None
    health = look.health(look.snapshot.gpus[0])
    assert health is not None
    assert health.status == "ok"
    assert look.health(look.snapshot.gpus[1]) is None
    machine.close()
    assert source.closed


def test_a_fresh_look_is_given_again_and_an_old_one_is_not(source: Source) -> None:
    clock = Clock()
    machine = Machine(5.0, source=source, verdicts=dict, clock=clock)
    first = machine.look()
    assert machine.look() is first
    clock.now += FRESH_S + 0.1
    second = machine.look()
    assert source.looks == 2
    assert second.before == first.snapshot


def test_a_driver_that_hangs_delays_one_answer_and_is_told(source: Source) -> None:
    clock = Clock()
    machine = Machine(0.05, source=source, verdicts=dict, clock=clock)
    known = machine.look().snapshot
    clock.now += FRESH_S + 0.1
    with hanging(source):
        first = machine.look()
        clock.now += 10.0
        began = time.monotonic()
        second = machine.look()
        waited = time.monotonic() - began
    assert first.late is not None
    assert second.late == "the driver has not answered for 10 s"
    assert second.snapshot == known
    assert waited < 0.04
    assert source.looks == 2  # it is not asked anew while it hangs


def test_a_driver_that_hangs_from_the_beginning_has_told_nothing(source: Source) -> None:
    machine = Machine(0.02, source=source, verdicts=dict)
    with hanging(source):
        look = machine.look()
    assert look.snapshot.gpus == ()
    assert look.snapshot.source == look.late


def test_a_failure_is_told_and_the_next_look_tries_again(source: Source) -> None:
    clock = Clock()
    machine = Machine(5.0, source=source, verdicts=dict, clock=clock)
    source.failure = OSError("no such device")
    assert "no such device" in str(machine.look().late)
    source.failure = None
    clock.now += FRESH_S + 0.1
    assert machine.look().late is None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("0", 0),
        ("1", 1),
        ("GPU-aaaa1111", 0),
        ("gpu-aaab", 1),
        ("GPU-aaa", None),
        ("2", None),
        ("GPU-", None),
        ("x", None),
    ],
)
def test_a_gpu_is_found_by_index_or_uuid(source: Source, name: str, found: int | None) -> None:
    look = MachineLook(source())
    sample = look.find(name)
    assert (None if sample is None else sample.gpu) == (None if found is None else GPUS[found])
