"""What becomes of a run of independent workers when one of them ends."""

from __future__ import annotations

import errno
import signal

import pytest

from drumline.errors import DataError
from drumline.launcher.failures import Failure, failure_of_exit
from drumline.launcher.independent_child import DISK_FULL, status_of
from drumline.launcher.replacing import MOST_VAIN, End, Seat, decide, outcome, sickness

SEAT = Seat(("GPU-a",))


def failed(code: int, message: str = "", *, got_going: bool = True) -> End:
    failure = Failure(0, 0.0, "error", 1, message) if message else failure_of_exit(0, code, 0.0)
    return End(code, got_going, failure)


@pytest.mark.parametrize(
    ("end", "stopping", "action"),
    [
        (End(0, True), False, "done"),
        (End(0, True), True, "done"),
        (failed(2), False, "refused"),
        (failed(2), True, "refused"),
        (End(3, True), False, "stopped"),
        (failed(1), True, "stopped"),
        (failed(-signal.SIGTERM), True, "stopped"),
        (failed(1), False, "replace"),
        (failed(4), False, "replace"),
        (failed(-signal.SIGKILL), False, "replace"),
        (failed(1, "RuntimeError: CUDA error: uncorrectable ECC error encountered"), False, "leave_out"),
    ],
)
def test_each_end_has_its_consequence(end: End, stopping: bool, action: str) -> None:
    assert decide(SEAT, end, 1, stopping=stopping).action == action


def test_what_one_refuses_while_another_works_ends_its_seat_alone() -> None:
    assert decide(SEAT, failed(2), 1, stopping=False, others_work=True).action == "leave_out"
    assert decide(SEAT, failed(2), 1, stopping=True, others_work=True).action == "refused"


def test_a_full_disk_leaves_the_seat_out_and_says_so() -> None:
    decision = decide(SEAT, failed(DISK_FULL), 20, stopping=False)
    assert decision.action == "leave_out" and "the disk is full" in decision.why


def test_what_a_worker_ends_with_says_whether_there_was_room() -> None:
    full = OSError(errno.ENOSPC, "no room")
    wrapped = RuntimeError("cannot write")
    wrapped.__cause__ = full
    assert [status_of(each) for each in (full, wrapped)] == [DISK_FULL] * 2
    assert [status_of(each) for each in (OSError(errno.EIO, "?"), DataError("a", "b"))] == [1, 2]


def test_without_restarts_nobody_follows_and_the_reason_is_told() -> None:
    decision = decide(SEAT, failed(1), 0, stopping=False)
    assert (decision.action, decision.why) == ("leave_out", "no restart is left (max_restarts)")


def test_workers_that_never_begin_are_not_replaced_for_ever() -> None:
    seat, actions = SEAT, []
    for _ in range(MOST_VAIN):
        decision = decide(seat, failed(1, got_going=False), 20, stopping=False)
        seat = decision.seat
        actions.append(decision.action)
    assert actions == ["replace", "replace", "leave_out"]
    assert "3 workers in a row" in decision.why


def test_one_that_has_worked_is_no_vain_try_and_forgives_those_before() -> None:
    seat = Seat(("GPU-a",), vain=MOST_VAIN - 1)
    decision = decide(seat, failed(-9), 20, stopping=False)
    assert (decision.action, decision.seat.vain) == ("replace", 0)


def test_only_a_gpu_can_be_sick_and_a_fix_that_speaks_of_one_says_nothing() -> None:
    sick = Failure(0, 0.0, "error", 1, "RuntimeError: GPU is lost")
    assert sickness(SEAT, sick) is not None
    assert sickness(Seat(()), sick) is None
    assert sickness(SEAT, Failure(0, 0.0, "error", 1, "no\n  fix: see whether the GPU is lost")) is None


def test_the_run_is_done_when_one_worker_says_so_however_others_ended() -> None:
    assert outcome([failed(-9), End(0, True), failed(1)], asked=signal.SIGTERM) == (0, None)


def test_a_bad_request_is_told_though_its_peers_were_killed_for_it() -> None:
    refused = failed(2, "no such column")
    status, failure = outcome([failed(-9), refused, failed(-9)], asked=None)
    assert (status, failure) == (2, refused.failure)


def test_a_run_that_was_stopped_has_not_failed() -> None:
    assert outcome([failed(1), End(-15, True)], asked=signal.SIGTERM) == (3, None)
    assert outcome([failed(1), End(3, True)], asked=None) == (3, None)


def test_a_run_without_workers_left_failed_of_the_last_error() -> None:
    last = failed(1, "boom")
    assert outcome([End(3, True), failed(-9), last], asked=None) == (1, last.failure)
