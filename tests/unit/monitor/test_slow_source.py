"""A source that hangs or fails holds nobody up, keeps its last value, and is told by its age."""

from __future__ import annotations

import logging
import threading

import pytest

from drumline.monitor.slow_source import SlowSource
from tests.unit.monitor.whole_machine import until


def test_each_asking_reads_anew() -> None:
    values = iter([1, 2])
    source = SlowSource(lambda: next(values))
    assert [source.get(), source.get()] == [1, 2]


def test_one_that_hangs_is_not_waited_for_and_not_asked_again() -> None:
    now = 0.0
    go_on = threading.Event()
    calls = []

    def read() -> int:
        calls.append(1)
        if len(calls) > 1:
            go_on.wait()
        return len(calls)

    source = SlowSource(read, limit_s=0.02, clock=lambda: now)
    assert source.get() == 1
    now = 50.0
    try:
        assert [source.get(), source.get(), source.get()] == [1, 1, 1]
        assert len(calls) == 2, "a thread for each asking would pile up"
        assert source.age_s() == 50.0
    finally:
        go_on.set()
    until(lambda: source.age_s() == 0.0)
    assert source.get() == 3


def test_one_that_never_answered_has_no_value_and_the_age_of_the_asker() -> None:
    now = 0.0
    go_on = threading.Event()
    source = SlowSource(go_on.wait, limit_s=0.01, clock=lambda: now)
    now = 7.0
    try:
        assert source.get() is None
        assert source.age_s() == 7.0
    finally:
        go_on.set()


def test_a_failure_is_told_once_and_the_last_value_stays(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[int | Exception] = [1, OSError("stale handle"), OSError("stale handle"), 2, OSError("stale handle")]

    def read() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    source = SlowSource(read)
    with caplog.at_level(logging.WARNING, "drumline"):
        assert [source.get() for _ in range(5)] == [1, 1, 1, 2, 2]
    told = [record.getMessage() for record in caplog.records]
    assert told == ["a source of metrics failed: OSError: stale handle"] * 2, "once for each time that it broke"
