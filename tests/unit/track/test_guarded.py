"""A tracker that fails is left out, and everything around it goes on."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from drumline.plan.record import Plan
from drumline.track.guarded import GuardedTracker

PLAN = Plan("single", "cpu", (), 1, 1, "none", 4, 4, 1, "fp32", 0, 10, 5)
METHODS = ("start", "log", "close")


class Panic(BaseException):
    """As a Rust extension raises: no Exception."""


class Sink:
    """A tracker that writes down its calls and raises in some of them."""

    def __init__(self, errors: dict[str, BaseException]) -> None:
        self.calls: list[str] = []
        self.records: list[dict[str, Any]] = []
        self._errors = errors

    def start(self, plan: Plan, total_steps: int | None) -> None:
        assert (plan, total_steps) == (PLAN, 10)
        self._called("start")

    def log(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        self._called("log")

    def close(self) -> None:
        self._called("close")

    def _called(self, method: str) -> None:
        self.calls.append(method)
        if method in self._errors:
            raise self._errors[method]


Events = list[tuple[str, dict[str, Any]]]


def guarded(sink: Sink) -> tuple[GuardedTracker, Events]:
    events: Events = []
    return GuardedTracker(sink, lambda name, **facts: events.append((name, facts))), events


def run(tracker: GuardedTracker) -> None:
    tracker.start(PLAN, 10)
    for step in (1, 2):
        tracker.log({"kind": "train", "step": step})
    tracker.close()
    tracker.close()


def test_a_sound_tracker_sees_everything_and_cannot_change_what_others_see() -> None:
    sink = Sink({})
    tracker, events = guarded(sink)
    run(tracker)
    assert sink.calls == ["start", "log", "log", "close", "close"]
    record = {"kind": "train", "step": 3}
    tracker.log(record)
    sink.records[-1].pop("step")
    assert record == {"kind": "train", "step": 3}
    assert events == []


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), AssertionError("mine"), Panic("panicked")])
def test_a_failure_is_told_once_and_the_tracker_closed_and_left_out(
    method: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Sink({method: error})
    tracker, events = guarded(sink)
    with caplog.at_level(logging.INFO):
        run(tracker)
    before = {"start": [], "log": ["start"], "close": ["start", "log", "log"]}[method]
    assert sink.calls == [*before, method, *(["close"] if method != "close" else [])]
    message = f"Sink.{method}: {type(error).__name__}: {error}"
    assert events == [("tracker_failed", {"tracker": "Sink", "message": message})]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning == f"the tracker Sink failed and is left out from here on, the run goes on: {message}"
    assert "_called" in caplog.text  # the traceback, for the log file


def test_one_that_cannot_even_be_closed_is_still_told_of(caplog: pytest.LogCaptureFixture) -> None:
    sink = Sink({"log": ValueError("first"), "close": ValueError("second")})
    tracker, events = guarded(sink)
    run(tracker)
    assert sink.calls == ["start", "log", "close"]
    assert [facts["message"] for _, facts in events] == ["Sink.log: ValueError: first"]
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(4)])
@pytest.mark.parametrize("method", METHODS)
def test_what_ends_a_program_gets_through(method: str, error: BaseException) -> None:
    tracker, events = guarded(Sink({method: error}))
    with pytest.raises(type(error)):
        run(tracker)
    assert events == []


def test_a_full_disk_under_the_events_does_not_matter_either(caplog: pytest.LogCaptureFixture) -> None:
    def full(name: str, **facts: Any) -> None:
        raise OSError(28, "No space left on device")

    run(GuardedTracker(Sink({"log": ValueError("mine")}), full))
    first, second = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "Sink.log: ValueError: mine" in first
    assert second == "events.jsonl does not say so: [Errno 28] No space left on device"
