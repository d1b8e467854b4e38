"""Where the time of a step goes, out of intervals."""

from __future__ import annotations

import pytest

from drumline.engine.breakdown import Breakdown, Busy, Interval, breakdown, busy, own_times, top

KERNEL, NCCL = "gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def test_hidden_and_exposed_communication_are_told_apart_over_streams() -> None:
    found = busy(
        [
            Interval(KERNEL, 7, 0.0, 4.0),
            Interval("other", 8, 3.0, 5.0),  # beside the one before: counts once
            Interval(NCCL, 20, 2.0, 7.0),
            Interval("ncclKernel_AllGather", 20, 9.0, 10.0),
            Interval(KERNEL, 7, 6.0, 6.5),
        ]
    )
    assert found == Busy(compute_s=5.5, communication_s=6.0, exposed_s=2.5)


def test_nothing_ran() -> None:
    assert busy([]) == Busy(0.0, 0.0, 0.0)
    assert breakdown(0.0, busy([]), 0.0).verdict == "compute"


def test_idle_time_is_the_loaders_as_far_as_the_loop_waited_and_the_hosts_beyond() -> None:
    found = breakdown(10.0, Busy(6.0, 3.0, 1.0), waited_s=2.0)
    assert found == Breakdown(10.0, 6.0, 1.0, 2.0, 1.0, 3.0)
    assert sum(found.shares.values()) == pytest.approx(1.0)


def test_a_wait_that_the_device_spent_computing_costs_nothing() -> None:
    found = breakdown(10.0, Busy(9.5, 0.0, 0.0), waited_s=8.0)
    assert (found.loader_s, found.host_s) == (0.5, 0.0)


def test_a_step_is_never_shorter_than_what_ran_in_it() -> None:
    found = breakdown(5.0, Busy(6.0, 1.0, 1.0), waited_s=1.0)
    assert (found.step_s, found.loader_s, found.host_s) == (7.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("ran", "waited", "verdict"),
    [
        (Busy(9.5, 2.0, 0.3), 0.0, "compute"),
        (Busy(6.0, 4.0, 3.0), 0.5, "communication"),
        (Busy(6.0, 1.0, 1.0), 2.5, "loader"),
        (Busy(6.0, 1.0, 1.0), 0.5, "host"),
    ],
)
def test_the_verdict_is_the_largest_loss(ran: Busy, waited: float, verdict: str) -> None:
    found = breakdown(10.0, ran, waited)
    assert found.verdict == verdict
    assert found.describe().startswith(f"bound by {verdict}: of 10000.0 ms a step")
    assert found.to_json()["verdict"] == verdict


def test_nested_intervals_keep_their_own_time_only() -> None:
    found = own_times(
        [
            Interval("outer", 1, 0.0, 10.0),
            Interval("inner", 1, 1.0, 4.0),
            Interval("innermost", 1, 2.0, 3.0),
            Interval("inner", 1, 5.0, 6.0),
            Interval("elsewhere", 2, 0.0, 5.0),
        ]
    )
    assert {(each.name, each.end - each.begin) for each in found} == {
        ("outer", 6.0),
        ("inner", 2.0),
        ("inner", 1.0),
        ("innermost", 1.0),
        ("elsewhere", 5.0),
    }


def test_the_longest_names_come_first_by_step() -> None:
    intervals = [Interval("a", 1, 0.0, 1.0), Interval("b", 1, 1.0, 4.0), Interval("a", 1, 4.0, 5.0)]
    assert top(intervals, limit=1, steps=2) == [{"name": "b", "calls": 0.5, "seconds": 1.5, "share": 0.6}]
    assert [each["calls"] for each in top(intervals, 5, 2)] == [0.5, 1.0]
