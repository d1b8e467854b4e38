"""Which running jobs make room for one that waits, and which grow when none does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.config.service import SchedulingConfig
from drumline.jobs.records import Inventory, Job, Resources
from drumline.jobs.scheduler import StopFor
from tests.unit.jobs.simulated_fleet import BEGIN, GIB, SimulatedFleet, machine, queued
from tests.unit.jobs.test_scheduler import decision, runs, started


def elastic(name: str, first: int, count: int, least: int, most: int = 8, priority: int = 0) -> Job:
    """An elastic job that runs on these devices since the beginning."""
    asked = Resources(min_devices=least, max_devices=most, priority=priority)
    return replace(runs(name, first, count), resources=asked)


URGENT = queued("urgent", Resources(4, priority=5), 500)


def test_the_least_important_gives_way_and_of_equal_ones_that_which_began_last() -> None:
    low, middle = runs("low", 0, 4, priority=-1), runs("middle", 4, 4)
    found = decision([URGENT], [low, middle])
    assert found.stops == (StopFor("low", "preempt"),)
    assert found.waits == {"urgent": "starts with 4 GPUs as soon as low has stopped"}
    later = replace(middle, id="later", attempt_began=BEGIN + 1)
    assert decision([URGENT], [runs("r", 0, 4), later]).stops == (StopFor("later", "preempt"),)


def test_no_more_are_stopped_than_must_be() -> None:
    """The small one comes first by its priority, and is superfluous once the big one has to stop too."""
    found = decision([URGENT], [runs("small", 0, 1, priority=-2), runs("big", 1, 7, priority=-1)])
    assert found.stops == (StopFor("big", "preempt"),)


@pytest.mark.parametrize(
    ("holder", "policy"),
    [
        (runs("r", 0, 8, preemptible=False), {}),
        (runs("r", 0, 8, priority=5), {}),
        (replace(runs("r", 0, 8), attempt_began=BEGIN + 541), {}),
        (replace(runs("r", 0, 8), state="starting"), {}),
        (runs("r", 0, 8), {"preempt": False}),
        (replace(runs("r", 0, 8), queued_since=BEGIN - 3100), {}),
    ],
    ids=["not preemptible", "equal priority", "began just now", "starts", "switched off", "waited long itself"],
)
def test_who_is_not_stopped(holder: Job, policy: dict[str, Any]) -> None:
    found = decision([URGENT], [holder], **policy)
    assert (found.starts, found.stops) == ((), ())
    assert found.waits == {"urgent": "waits for 4 GPUs: none is free, r has the others"}


def test_nobody_is_stopped_where_that_would_not_do() -> None:
    whole = queued("whole", Resources(8, priority=5))
    assert decision([whole], [runs("r", 0, 6), runs("fixed", 6, 2, preemptible=False)]).stops == ()


def test_nobody_is_stopped_for_a_job_behind_the_first() -> None:
    """What came free would be the first one's."""
    first = queued("first", Resources(8), -9000)
    found = decision([first, URGENT], [runs("r", 0, 4), runs("fixed", 4, 4, preemptible=False)])
    assert (found.starts, found.stops) == ((), ())


def test_while_jobs_stop_their_devices_are_kept_and_no_others_are_stopped() -> None:
    stopping = replace(runs("low", 0, 4), state="stopping", stop="preempt", stop_asked=BEGIN + 599)
    small = queued("small", Resources(2), 550)
    found = decision([URGENT, small], [stopping, runs("other", 4, 3)])
    assert (started(found), found.stops) == ({}, ())
    assert found.waits["urgent"] == "starts with 4 GPUs as soon as low has stopped"
    # The free one is URGENT's, of low's four one is left over, and for the other one nobody is stopped.
    assert found.waits["small"].startswith("waits for 2 GPUs")


def test_elastic_jobs_shrink_for_any_job_that_waits_and_before_others_are_preempted() -> None:
    running = [elastic("e", 0, 6, least=2), runs("r", 6, 2, priority=-9)]
    found = decision([queued("new", Resources(3, priority=-3), 500)], running)
    assert found.stops == (StopFor("e", "resize", 3),)
    assert decision([URGENT], running).stops == (StopFor("e", "resize", 2),)
    both = decision([queued("six", Resources(6, priority=5), 500)], running)
    assert both.stops == (StopFor("e", "resize", 2), StopFor("r", "preempt"))


def test_an_elastic_job_that_must_give_all_is_preempted() -> None:
    found = decision([queued("whole", Resources(8, priority=5), 500)], [elastic("e", 0, 8, least=2)])
    assert found.stops == (StopFor("e", "preempt"),)


def test_after_its_resize_a_job_comes_back_first_on_its_least_and_the_rest_is_the_others() -> None:
    back = replace(queued("e", Resources(min_devices=2, max_devices=8)), reason="resized", attempt=1)
    waiting = [back, queued("a", Resources(4, priority=9)), queued("b", Resources(4, priority=9))]
    found = decision(waiting)
    assert started(found) == {"e": 2, "a": 4}
    assert started(decision(waiting[:2])) == {"e": 4, "a": 4}


def test_elastic_jobs_grow_when_nobody_waits() -> None:
    found = decision([], [elastic("e", 0, 3, least=2, most=6), elastic("f", 3, 2, least=1, most=4)])
    assert found.stops == (StopFor("f", "resize", 4), StopFor("e", "resize", 4))


def test_they_do_not_grow_for_nothing() -> None:
    small = elastic("e", 0, 4, least=2)
    assert decision([], [replace(small, attempt_began=BEGIN + 541)]).stops == ()
    assert decision([], [small, replace(runs("r", 4, 1), state="stopping", stop="cancel")]).stops == ()
    assert decision([], [elastic("e", 0, 4, least=2, most=4)]).stops == ()
    # 110 seconds that are left become 55: the restart is not worth it. A job that fits nowhere is no reason to wait.
    assert decision([], [replace(small, progress={"eta_s": 110.0})]).stops == ()
    grows = (StopFor("e", "resize", 8),)
    assert decision([queued("huge", Resources(9))], [replace(small, progress={"eta_s": 130.0})]).stops == grows


def test_none_shrinks_where_it_might_come_back_on_just_the_wanted_devices() -> None:
    inventory = Inventory("node", BEGIN, machine(8, memory={0: 24}), has_gpus=True)
    asks = queued("a", Resources(2, memory_bytes=40 * GIB), 500)
    found = decision([asks], [elastic("e", 0, 8, least=2)], inventory)
    assert (found.starts, found.stops) == ((), ())


def test_a_preempted_job_waits_until_the_other_is_through_and_then_goes_on() -> None:
    fleet = SimulatedFleet(machine(4), SchedulingConfig(ageing_s=100.0))
    fleet.add(
        [(queued("low", Resources(4), owner="bob"), 3000.0), (queued("high", Resources(4, priority=1), 200.0), 500.0)]
    )
    fleet.run(10_000.0, 10.0)
    assert dict(fleet.stops) == {("low", "preempt"): 1}
    assert fleet.ended["high"] < BEGIN + 800 and fleet.ended["low"] < BEGIN + 3600


def test_a_job_is_not_preempted_again_and_again_by_a_stream_of_others() -> None:
    """Each attempt is left alone for longer: 60 s, 120 s, …; eight of them are more than its 2000 s."""
    fleet = SimulatedFleet(machine(4), SchedulingConfig(ageing_s=100.0))
    fleet.add([(queued("low", Resources(4)), 2000.0)])
    fleet.add((queued(f"s{n:03}", Resources(4, priority=3), 100.0 * n), 100.0) for n in range(1, 200))
    fleet.run(15_000.0, 20.0)
    assert fleet.ended["low"] < BEGIN + 8000 and fleet.stops["low", "preempt"] < 8
