"""Which job starts, on what, and why others wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from drumline.config.service import SchedulingConfig
from drumline.jobs.records import Inventory, Job, Lease, Resources
from drumline.jobs.scheduler import Decision, decide
from tests.unit.jobs.simulated_fleet import BEGIN, GIB, SimulatedFleet, machine, queued


def decision(
    waiting: Iterable[Job],
    running: Iterable[Job] = (),
    inventory: Inventory | None = None,
    usage: Mapping[str, float] | None = None,
    **policy: Any,
) -> Decision:
    """What is decided ten minutes after the beginning, on eight devices unless said otherwise."""
    now = BEGIN + 600.0
    running = list(running)
    leases = [Lease(device, "node", job.id, BEGIN, now + 30) for job in running for device in job.devices]
    inventory = inventory or Inventory("node", now, machine(8), has_gpus=True)
    jobs = [*waiting, *running]
    return decide(jobs, leases, inventory, now, SchedulingConfig(**policy), usage or {})


def started(found: Decision) -> dict[str, int]:
    """Job -> number of devices."""
    return {start.job_id: len(start.devices) for start in found.starts}


def runs(name: str, first: int, count: int, **asked: Any) -> Job:
    """A job that runs on these devices since the beginning."""
    devices = tuple(f"GPU-{number:03}" for number in range(first, first + count))
    resources = Resources(**{"devices": count, **asked})
    return replace(queued(name, resources), state="running", devices=devices, attempt_began=BEGIN, attempt=1)


def test_the_oldest_of_equal_jobs_starts_first_and_all_that_fit_start() -> None:
    found = decision([queued("c", Resources(4), 9), queued("a", Resources(4), 7), queued("b", Resources(4), 8)])
    assert [start.job_id for start in found.starts] == ["a", "b"]
    assert found.waits == {"c": "waits for 4 GPUs: none is free, a and b have the others"}


def test_a_job_gets_all_its_devices_or_none() -> None:
    found = decision([queued("a", Resources(4))], [runs("r", 0, 5)])
    assert (found.starts, found.stops) == ((), ())
    assert found.waits == {"a": "waits for 4 GPUs: 3 are free, r has the others"}


def test_priority_comes_before_age_and_waiting_raises_it() -> None:
    old, young = queued("old", Resources(8), 0), queued("young", Resources(8, priority=1), 599)
    assert started(decision([old, young], ageing_s=601)) == {"young": 8}
    assert started(decision([old, young], ageing_s=300)) == {"old": 8}


def test_time_in_which_a_job_ran_is_no_waiting() -> None:
    again = replace(queued("again", Resources(8)), used_s=590.0, attempt=1, reason="preempted")
    assert started(decision([again, queued("new", Resources(8, priority=1), 590)], ageing_s=100)) == {"new": 8}


def test_owners_take_turns_and_who_had_less_goes_first() -> None:
    jobs = [queued(f"a{n}", Resources(2), n, owner="ann") for n in range(4)]
    jobs += [queued(f"b{n}", Resources(2), 10 + n, owner="bob") for n in range(4)]
    assert list(started(decision(jobs, ageing_s=1e4))) == ["a0", "b0", "a1", "b1"]
    assert list(started(decision(jobs, usage={"ann": 7300.0}, ageing_s=1e4))) == ["b0", "b1", "a0", "b2"]
    assert list(started(decision(jobs, usage={"ann": 1e6}, ageing_s=1e4))) == ["b0", "b1", "b2", "b3"]


def test_what_an_owner_has_running_counts() -> None:
    jobs = [queued("a", Resources(4), 0, owner="ann"), queued("b", Resources(4), 1, owner="bob")]
    assert list(started(decision(jobs, [replace(runs("r", 0, 4), owner="ann")], ageing_s=1e4))) == ["b"]


def test_auto_takes_all_that_are_free() -> None:
    assert started(decision([queued("a", Resources())], [runs("r", 2, 3)])) == {"a": 5}
    assert (
        decision([queued("a", Resources())], [runs("r", 0, 8)]).waits["a"].startswith("waits for 1 GPU: none is free")
    )


def test_leased_and_unusable_devices_are_never_given() -> None:
    sick = tuple(
        replace(device, unusable="held by pid 7") if device.id == "GPU-001" else device for device in machine(4)
    )
    inventory = Inventory("node", BEGIN, sick, has_gpus=True)
    forgotten = [Lease("GPU-002", "node", "nobody-knows", BEGIN, BEGIN - 100)]
    found = decide([queued("a", Resources())], forgotten, inventory, BEGIN, SchedulingConfig(), {})
    assert found.starts[0].devices == ("GPU-000", "GPU-003")


def test_what_can_never_run_here_or_not_now_keeps_nothing_from_others() -> None:
    devices = [replace(device, unusable="ECC errors" if device.id == "GPU-003" else None) for device in machine(4)]
    waiting = [
        queued("huge", Resources(16, priority=9)),
        queued("fat", Resources(2, memory_bytes=100 * GIB, priority=9)),
        queued("whole", Resources(4, priority=9)),
        queued("small", Resources(3)),
    ]
    found = decision(waiting, inventory=Inventory("node", BEGIN, tuple(devices), has_gpus=True))
    assert started(found) == {"small": 3}
    assert found.waits == {
        "huge": "asks for 16 GPUs and this machine has 4",
        "fat": "asks for 2 GPUs with 100 GiB free each: of the 4 of this machine none has so much",
        "whole": "waits for 4 GPUs: only 3 can be used now (GPU-003: ECC errors)",
    }


def test_what_others_run_is_not_told_by_name() -> None:
    running = [runs("mine", 0, 1), *(replace(runs(f"b{n}", n, 1), owner="bob") for n in range(1, 8))]
    waits = decision([queued("a", Resources(4))], running).waits["a"]
    assert waits == "waits for 4 GPUs: none is free, mine and 7 other jobs have the others"
    waits = decision([queued("a", Resources(4))], [replace(runs("b", 0, 8), owner="bob")]).waits["a"]
    assert waits == "waits for 4 GPUs: none is free, another job has the others"
    devices = [replace(device, unusable="taken: process 7 (python) of bob computes on it") for device in machine(1)]
    waits = decision([queued("a", Resources())], inventory=Inventory("node", BEGIN, tuple(devices))).waits["a"]
    assert waits == "waits for 1 slot: none can be used now (GPU-000: taken by somebody else)"


def test_slots_are_called_so() -> None:
    found = decision([queued("a", Resources(9))], inventory=Inventory("node", BEGIN, machine(2)))
    assert found.waits == {"a": "asks for 9 slots and this machine has 2"}


def test_only_devices_with_enough_memory_are_given() -> None:
    inventory = Inventory("node", BEGIN, machine(4, memory={0: 24, 2: 24}), has_gpus=True)
    found = decision([queued("a", Resources(memory_bytes=40 * GIB))], inventory=inventory)
    assert found.starts[0].devices == ("GPU-001", "GPU-003")


def test_a_job_that_names_gpus_is_given_those_and_no_others() -> None:
    waiting = [
        queued("pair", Resources(2, gpus=("GPU-005", "GPU-002")), 0),
        queued("one", Resources(1, gpus=("GPU-002", "GPU-003")), 1),
        queued("held", Resources(1, gpus=("GPU-002",)), 2),
        queued("any", Resources(), 3),
    ]
    found = decision(waiting, [runs("r", 0, 2)])
    given = {start.job_id: set(start.devices) for start in found.starts}
    assert given == {
        "pair": {"GPU-002", "GPU-005"},
        "one": {"GPU-003"},
        "any": {"GPU-004", "GPU-006", "GPU-007"},
    }
    assert found.waits["held"] == "waits for 1 GPU out of GPU-002: none is free, pair has the others"


def test_room_is_made_on_the_gpus_that_are_named() -> None:
    running = [runs("left", 0, 2), runs("right", 2, 2)]
    inventory = Inventory("node", BEGIN, machine(4), has_gpus=True)
    found = decision([queued("mine", Resources(1, gpus=("GPU-003",), priority=1))], running, inventory)
    assert [stop.job_id for stop in found.stops] == ["right"]


def test_a_named_gpu_that_is_not_there_or_cannot_be_used_is_told() -> None:
    devices = [
        replace(device, unusable="sick" if device.id in ("GPU-001", "GPU-002") else None) for device in machine(4)
    ]
    waiting = [
        queued("gone", Resources(1, gpus=("GPU-009",))),
        queued("sick", Resources(1, gpus=("GPU-001",))),
        queued("small", Resources(3)),
    ]
    waits = decision(waiting, inventory=Inventory("node", BEGIN, tuple(devices), has_gpus=True)).waits
    assert waits["gone"] == "asks for 1 GPU out of GPU-009: this machine has no GPU-009"
    assert waits["sick"] == "waits for 1 GPU out of GPU-001: none can be used now (GPU-001: sick)"


@pytest.mark.parametrize(("ends_with", "spared"), [((6,), 2), ((2, 4), 0), ((3, 3), 1)])
def test_others_get_what_the_first_can_spare_whichever_job_ends_next(ends_with: tuple[int, ...], spared: int) -> None:
    running, at = [], 0
    for number, size in enumerate(ends_with):
        running.append(runs(f"r{number}", at, size))
        at += size
    small = [queued(f"s{number}", Resources(1), 10 + number) for number in range(3)]
    found = decision([queued("first", Resources(4)), *small], running)
    assert started(found) == {f"s{number}": 1 for number in range(spared)}
    assert found.waits["s2"] == "waits for 1 GPU: jobs that come before it get what is free"


def test_a_job_that_starts_now_may_end_first_too() -> None:
    """Without it, two more devices would be spared: the one that runs gives back eight."""
    inventory = Inventory("node", BEGIN, machine(12), has_gpus=True)
    waiting = [queued("a", Resources(2), 0), queued("first", Resources(4), 1), queued("small", Resources(1), 2)]
    assert started(decision(waiting, [runs("r", 0, 8)], inventory)) == {"a": 2}


def test_elastic_jobs_share_what_is_left_evenly() -> None:
    waiting = [
        queued("a", Resources(min_devices=1, max_devices=8), 0),
        queued("b", Resources(min_devices=1, max_devices=2), 1),
        queued("c", Resources(min_devices=1, max_devices=8), 2),
        queued("d", Resources(1), 3),
    ]
    found = decision(waiting)
    assert started(found) == {"a": 3, "b": 2, "c": 2, "d": 1}


def test_the_same_whatever_the_order_of_the_input() -> None:
    fleet = SimulatedFleet(machine(8), SchedulingConfig(least_run_s=0.0))
    fleet.add((queued(f"j{n}", Resources(n % 3 + 1, priority=n % 2), owner=f"o{n % 4}"), 300.0) for n in range(30))
    fleet.run(200.0, 50.0)
    jobs, leases, inventory = list(fleet.jobs.values()), fleet.leases(), fleet.inventory()
    policy = SchedulingConfig(least_run_s=0.0)
    one = decide(jobs, leases, inventory, fleet.now + 1e4, policy, {})
    assert decide(jobs[::-1], leases[::-1], inventory, fleet.now + 1e4, policy, {}) == one
