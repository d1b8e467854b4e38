from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from drumline.monitor.background import Background


def until(true: Callable[[], object], limit_s: float = 10.0) -> None:
    limit = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.002)


class Reader:
    """Gives 1, 2, ...; what is in `faults` is raised instead."""

    def __init__(self) -> None:
        self.reads = 0
        self.faults: list[Exception] = []
        self.closed = threading.Event()

    def __call__(self) -> int:
        self.reads += 1
        if self.faults:
            raise self.faults.pop()
        return self.reads

    def close(self) -> None:
        self.closed.set()


def test_it_reads_again_and_again_and_closes_the_reader() -> None:
    reader = Reader()
    with Background(reader, 0.001, first=0) as background:
        background.wait(10.0)
        assert background.value >= 1
        until(lambda: background.value > 3)
        assert background.fresh() > 3
    assert reader.closed.wait(10.0)


def test_before_the_first_read_has_ended_there_is_the_first_value() -> None:
    held = threading.Event()

    def read() -> int:
        held.wait(30.0)
        return 7

    with Background(read, 0.001, first=0) as background:
        background.wait(0.0)
        assert background.value == 0
        with pytest.raises(TimeoutError):
            background.fresh()
        held.set()
        until(lambda: background.value == 7)


def test_a_read_that_fails_leaves_the_value_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader()
    reader.faults = [OSError("stale handle")] * 3
    with Background(reader, 0.001, first=0) as background:
        until(lambda: background.value > 3)
    assert [record.getMessage() for record in caplog.records] == [
        "what is shown is not up to date: OSError: stale handle"
    ]
