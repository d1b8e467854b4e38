from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from drumline.hardware.records import Snapshot
from drumline.monitor import sampler as module
from drumline.monitor.sampler import Sampler, next_tick
from tests.unit.monitor.snapshots import sample, snapshot


class Source:
    """Counts looks; waits inside one while `hang` is set."""

    def __init__(self) -> None:
        self.looks = 0
        self.closed = 0
        self.inside = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self) -> Snapshot:
        self.looks += 1
        self.inside.set()
        assert self.go_on.wait(10)
        return snapshot(sample(utilization=self.looks / 100))

    def close(self) -> None:
        self.closed += 1


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def hung(source: Source, sampler: Sampler) -> Iterator[None]:
    """A sampler whose source waits in its first look."""
    source.go_on.clear()
    sampler.start()
    assert source.inside.wait(5)
    try:
        yield
    finally:
        source.go_on.set()
        sampler.stop()


@pytest.mark.parametrize(
    ("last", "elapsed", "expected"),
    [
        (0, 0.01, (1, 0)),
        (0, 0.99, (1, 0)),
        (0, 1.0, (1, 0)),
        (0, 1.01, (2, 1)),
        (7, 12.5, (13, 5)),
        (86_400, 86_400.02, (86_401, 0)),
    ],
)
def test_ticks_are_counted_from_the_start(last: int, elapsed: float, expected: tuple[int, int]) -> None:
    assert next_tick(last, elapsed, 1.0) == expected


def test_it_looks_at_its_pace_without_drift() -> None:
    source, times = Source(), list[float]()
    enough = threading.Event()

    def slowly(_: Snapshot) -> None:
        times.append(time.monotonic())
        time.sleep(0.01)  # what each look takes must not add up
        if len(times) == 12:
            enough.set()

    with Sampler(0.02, source=source, on_sample=slowly) as sampler:
        assert enough.wait(5)
    ticks = (times[-1] - times[0]) / 0.02
    assert abs(ticks - (11 + sampler.overruns)) < 3, "with drift, 11 looks last 16 ticks of which none was counted"
    assert source.closed == 1
    assert sampler.history.series("GPU-0", "utilization")[1][:2] == [0.01, 0.02]


def test_ticks_that_were_missed_are_counted_not_made_up_for() -> None:
    source = Source()
    sampler = Sampler(0.01, source=source)
    with hung(source, sampler):
        time.sleep(0.1)
        source.go_on.set()
        assert sampler.look_within(5) is not None
    assert sampler.overruns >= 9


def test_latest_and_its_age() -> None:
    clock = Clock()
    sampler = Sampler(source=Source(), clock=clock)
    assert sampler.latest is None and sampler.age_s() is None
    assert sampler.look() is sampler.latest
    clock.now += 7.0
    assert sampler.age_s() == 7.0
    first = sampler.latest
    sampler.look()
    assert sampler.previous is first and sampler.age_s() == 0.0


def test_a_driver_that_hangs_is_told_and_stop_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_S", 0.05)
    source, clock = Source(), Clock()
    sampler = Sampler(source=source, clock=clock)
    with hung(source, sampler):
        assert sampler.stuck is None
        clock.now += 12.0
        assert sampler.stuck == "the driver has not answered for 12 s"
        assert sampler.look_within(0.01) is None
        begin = time.monotonic()
        sampler.stop()
        assert time.monotonic() - begin < 0.5
        sampler.start()
        assert len(_sampler_threads()) == 1, "none is piled up on the one that waits"
        source.go_on.set()
        while sampler.stuck is not None:
            time.sleep(0.001)
        assert sampler.look_within(5) is not None, "it goes on where the driver answers again"


def test_a_look_that_is_asked_for_begins_after_the_asking() -> None:
    source = Source()
    sampler = Sampler(3600.0, source=source)
    with hung(source, sampler):
        source.inside.clear()
        asker = threading.Thread(target=lambda: found.append(sampler.look_within(5)))
        found: list[Snapshot | None] = []
        asker.start()
        while not sampler._wanted:
            time.sleep(0.001)
        source.go_on.set()
        asker.join(5)
        assert source.looks == 2
        assert found[0] is not None and found[0].gpus[0].utilization == 0.02


def test_asked_for_looks_move_no_tick() -> None:
    with Sampler(3600.0, source=Source()) as sampler:
        for _ in range(3):
            assert sampler.look_within(5) is not None
        assert sampler.overruns == 0


def test_what_is_stopped_gives_no_look() -> None:
    sampler = Sampler(source=Source())
    assert sampler.look_within(0.01) is None
    with sampler:
        pass
    assert sampler.look_within(0.01) is None


def test_it_can_be_started_again() -> None:
    source = Source()
    sampler = Sampler(3600.0, source=source)
    for times in (1, 2):
        with sampler:
            assert sampler.look_within(5) is not None
        assert source.closed == times
    assert not _sampler_threads()


def test_errors_of_source_and_listener_are_logged_once_and_sampling_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Snapshot:
        raise ValueError("no such thing")

    sampler = Sampler(source=broken)
    with caplog.at_level(logging.WARNING, logger="drumline"):
        found = [sampler.look() for _ in range(3)]
    assert [look.source for look in found] == ["reading failed: ValueError: no such thing"] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "the GPUs could not be read: ValueError: no such thing"
    ]
    caplog.clear()
    looks: list[Snapshot] = []

    def listener(look: Snapshot) -> None:
        looks.append(look)
        raise OSError("disk full")

    sampler = Sampler(source=Source(), on_sample=listener)
    with caplog.at_level(logging.WARNING, logger="drumline"):
        for _ in range(3):
            sampler.look()
    assert len(looks) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "a sample could not be made use of: OSError: disk full"
    ]


def test_a_forked_child_has_none_and_can_start_its_own() -> None:
    source = Source()
    sampler = Sampler(3600.0, source=source)
    with hung(source, sampler):
        child = os.fork()
        if not child:
            ok = sampler.look_within(0.01) is None and sampler.stuck is None
            source.go_on.set()
            with sampler:
                ok = ok and sampler.look_within(5) is not None
            os._exit(0 if ok and not _sampler_threads() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_listener_may_stop_its_sampler() -> None:
    sampler = Sampler(0.001, source=Source(), on_sample=lambda _: sampler.stop())
    sampler.start()
    deadline = time.monotonic() + 5
    while _sampler_threads() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not _sampler_threads()
    assert sampler.latest is not None


def test_two_looks_at_once_take_turns() -> None:
    source = Source()
    sampler = Sampler(3600.0, source=source)
    with hung(source, sampler):
        other = threading.Thread(target=sampler.look)
        other.start()
        time.sleep(0.02)
        assert source.looks == 1, "a session belongs to one thread at a time"
        source.go_on.set()
        other.join(5)
    assert source.looks == 2


def _sampler_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "drumline-sampler"]
