"""What holds of the scheduler whatever the jobs and the machine: simulated fleets, each decision checked there.

A short fixed set of them; by hand many more, and other ones each time: SCHEDULER_EXAMPLES=1000 in each test.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as some

from drumline.config.service import SchedulingConfig
from drumline.jobs.priorities import COUNTED_AHEAD_S, in_order
from drumline.jobs.records import Job, Resources
from drumline.jobs.scheduler import decide
from tests.unit.jobs.simulated_fleet import BEGIN, GIB, SimulatedFleet, machine, queued

Timed = tuple[Job, float]
EXAMPLES = os.environ.get("SCHEDULER_EXAMPLES")


def drawn(few: int) -> settings:
    """So many examples, always the same, or as many as was said, and new ones."""
    return settings(derandomize=EXAMPLES is None, max_examples=int(EXAMPLES or few), deadline=None, database=None)


quick = drawn(30)
seconds = some.sampled_from((20.0, 90.0, 400.0, 1500.0))


@some.composite
def wishes(draw: some.DrawFn, largest: int = 8, priorities: int = 3) -> Resources:
    """What a job may ask for; now and then more than there is."""
    size = draw(some.sampled_from((1, 1, 2, 3, 4, largest, largest + 1)))
    common: dict[str, Any] = {
        "priority": draw(some.integers(0, priorities)),
        "preemptible": draw(some.booleans()),
        "memory_bytes": draw(some.sampled_from((None, None, None, 40 * GIB))),
    }
    if size <= largest and draw(some.sampled_from((False, False, False, True))):
        numbers = draw(some.lists(some.integers(0, largest - 1), min_size=size, max_size=largest, unique=True))
        common["gpus"] = tuple(f"GPU-{number:03}" for number in numbers)
    kind = draw(some.sampled_from(("fixed", "fixed", "elastic", "auto")))
    if kind == "elastic":
        return Resources(min_devices=min(size, largest), max_devices=draw(some.integers(size, 2 * size)), **common)
    return Resources("auto" if kind == "auto" else size, **common)


@some.composite
def arrivals(draw: some.DrawFn, most: int = 12, within: int = 3000) -> list[Timed]:
    """Jobs of three owners, some at once, some later."""
    return [
        (
            queued(f"j{number:02}", draw(wishes()), at, draw(some.sampled_from(("ann", "bob", "eve")))),
            draw(seconds),
        )
        for number, at in enumerate(draw(some.lists(some.integers(0, within), min_size=1, max_size=most)))
    ]


policies = some.builds(
    SchedulingConfig,
    ageing_s=some.sampled_from((50.0, 600.0)),
    least_run_s=some.sampled_from((0.0, 60.0)),
    preempt=some.booleans(),
)


def fits(job: Job, fleet: SimulatedFleet) -> bool:
    """Whether the machine could run it."""
    floor, gpus = job.resources.memory_bytes or 0, job.resources.gpus or [device.id for device in fleet.devices]
    there = [device for device in fleet.devices if device.id in gpus and (device.memory_bytes or 0) >= floor]
    return len(there) >= job.resources.least


@quick
@given(arrivals(), policies, some.sampled_from((8, 4)), some.booleans())
def test_every_job_that_fits_the_machine_is_done_in_the_end(
    jobs: list[Timed], policy: SchedulingConfig, group: int, is_mixed: bool
) -> None:
    """Preempted, shrunk and grown ones too; and none that was preempted has its devices back for nothing."""
    fleet = SimulatedFleet(machine(8, group, {1: 24, 6: 24} if is_mixed else None), policy)
    fleet.add(jobs)
    fleet.run(300_000.0, 60.0)
    assert set(fleet.jobs) == {job.id for job, _ in jobs if not fits(job, fleet)}


@quick
@given(arrivals(), policies, some.randoms(use_true_random=False))
def test_devices_that_come_and_go_break_nothing(
    jobs: list[Timed], policy: SchedulingConfig, chance: random.Random
) -> None:
    fleet = SimulatedFleet(machine(6, 4), policy, devices_change=True)
    fleet.add(jobs)
    for _ in range(60):
        bad = chance.sample(fleet.devices, chance.choice((0, 0, 1, 2)))
        fleet.unusable = {device.id: "a stranger" for device in bad}
        fleet.run(120.0, 60.0)
    fleet.unusable = {}
    fleet.run(300_000.0, 60.0)
    assert set(fleet.jobs) == {job.id for job, _ in jobs if not fits(job, fleet)}


@quick
@given(
    wishes(priorities=0).filter(lambda asked: asked.least <= 8), some.lists(wishes(), min_size=1, max_size=5), policies
)
def test_no_job_starves_under_a_steady_stream_of_others(
    asked: Resources, stream: list[Resources], policy: SchedulingConfig
) -> None:
    """Only those that came before it had waited for as many steps as they are more important can go before it."""
    fleet, ageing_s, every = SimulatedFleet(machine(8), policy), policy.ageing_s, 20.0
    ahead = int((3 + 2) * ageing_s / every) + 1
    least_s = 10 * policy.least_run_s + fleet.stop_s
    limit = (ahead + 1) * (100.0 + least_s + 120.0)
    fleet.add([(queued("mine", asked, 50.0, owner="ann"), 60.0)])
    jobs = (queued(f"s{n:03}", stream[n % len(stream)], every * n, owner="bob") for n in range(int(limit / every)))
    fleet.add((job, 100.0) for job in jobs)
    while "mine" not in fleet.started and fleet.now < BEGIN + limit:
        fleet.run(60.0, 60.0)
    assert "mine" in fleet.started


def runs_at_once(jobs: list[tuple[int, float]]) -> bool:
    """Whether all of them start on eight devices."""
    return sum(size for size, _ in jobs) <= 8


@quick
@given(
    some.lists(some.tuples(some.integers(1, 6), seconds), min_size=1, max_size=5).filter(runs_at_once),
    some.integers(1, 8),
    some.lists(some.tuples(some.integers(1, 4), seconds), min_size=1, max_size=8),
)
def test_back_filling_never_delays_the_first_that_waits(
    running: list[tuple[int, float]], size: int, behind: list[tuple[int, float]]
) -> None:
    def begins(followers: list[tuple[int, float]]) -> float:
        fleet = SimulatedFleet(machine(8), SchedulingConfig(ageing_s=1e6))
        sizes = [*running, (size, 100.0), *followers]
        fleet.add(
            (queued(f"j{number:02}", Resources(count), number / 100), time)
            for number, (count, time) in enumerate(sizes)
        )
        fleet.advance(1.0)
        while (first := f"j{len(running):02}") not in fleet.started:
            fleet.run(10.0, 10.0)
        return fleet.started[first]

    assert begins(behind) == begins([])


@quick
@given(arrivals(), policies, some.integers(0, 30), some.randoms(use_true_random=False))
def test_a_decision_follows_from_its_input_in_whatever_order(
    jobs: list[Timed], policy: SchedulingConfig, ticks: int, chance: random.Random
) -> None:
    fleet = SimulatedFleet(machine(8, 4, {0: 24, 5: 24}), policy)
    fleet.add(jobs)
    fleet.run(60.0 * ticks, 60.0)
    fleet.advance(45.0)
    now, leases, inventory = list(fleet.jobs.values()), fleet.leases(), fleet.inventory()
    one = decide(now, leases, inventory, fleet.now, policy, {"ann": 5.0})
    chance.shuffle(now)
    chance.shuffle(leases)
    assert decide(now, leases, inventory, fleet.now, policy, {"ann": 5.0}) == one


@quick
@given(arrivals(most=20, within=300), policies)
def test_deciding_again_changes_nothing_soon(jobs: list[Timed], policy: SchedulingConfig) -> None:
    """Once a decision is carried out, the next ones at the same moment come to an end."""
    fleet = SimulatedFleet(machine(8), policy)
    fleet.add(jobs)
    for _ in range(8):
        fleet.advance(60.0)
        for _ in range(5):
            decision = fleet.decide()
        assert (decision.starts, decision.stops) == ((), ())


LONGEST_S = 4000.0
"""Of a job of an owner who always has some waiting."""
TICK_S = 250.0


@some.composite
def endless(draw: some.DrawFn, devices: int) -> Iterator[tuple[Resources, float]]:
    """What an owner asks for again and again, of one priority: fixed and elastic jobs, short and long ones."""
    found = []
    for _ in range(draw(some.integers(1, 3))):
        size = draw(some.integers(1, devices))
        asked = Resources(size)
        if draw(some.sampled_from((False, False, True))):
            asked = Resources(min_devices=size, max_devices=draw(some.integers(size, devices)))
        found.append((asked, draw(some.sampled_from((400.0, 1500.0, LONGEST_S)))))
    return itertools.cycle(found)


@drawn(6)
@given(some.data(), some.integers(1, 6), some.sampled_from((0.0, 0.0, 0.0, 10_000.0)))
def test_owners_who_always_have_jobs_waiting_get_the_same(data: some.DataObject, devices: int, late: float) -> None:
    """Two of one priority, whatever the sizes and times of their jobs, where waiting does not raise priorities.

    Who has had more starts nothing while that is more than what counts ahead of the other's running jobs: an hour on
    every device at most. What is his by then ends within the longest time of a job. So what they have had, as far as
    it still counts, is never further apart than devices x (an hour + the longest time); where it was, as one of them
    came late, it is made up for.
    """
    fleet = SimulatedFleet(machine(devices), SchedulingConfig(ageing_s=1e9))
    wanted = {owner: data.draw(endless(devices)) for owner in ("ann", "bob")}
    names, apart = itertools.count(), 0.0
    while fleet.now < BEGIN + 3 * late + 30_000.0:
        for owner, wants in wanted.items():
            waiting = sum(job.owner == owner and job.state == "queued" for job in fleet.jobs.values())
            for asked, time in itertools.islice(
                wants, 3 - waiting if owner == "ann" or fleet.now >= BEGIN + late else 0
            ):
                fleet.add([(queued(f"{owner}{next(names):05}", asked, fleet.now - BEGIN, owner), time)])
        fleet.decide()
        fleet.advance(TICK_S)
        if fleet.now > BEGIN + 3 * late:
            apart = max(apart, abs(fleet.usage["ann"] - fleet.usage["bob"]))
    assert apart <= devices * (COUNTED_AHEAD_S + LONGEST_S + TICK_S)


@drawn(20)
@given(some.lists(wishes(priorities=1), min_size=1, max_size=10), some.randoms(use_true_random=False))
def test_elastic_jobs_give_what_they_can_spare_and_take_what_is_left(
    asked: list[Resources], chance: random.Random
) -> None:
    """Jobs that do not end come to rest; then none has more or less than it asks for, the first that waits could not
    start with all that elastic ones have above their least, or on the devices that it names, and with nobody waiting
    they leave nothing that one of them may take."""
    fleet = SimulatedFleet(machine(8), SchedulingConfig(ageing_s=1e9, least_run_s=60.0))
    fleet.add((queued(f"j{number}", each, chance.randrange(3000)), 1e9) for number, each in enumerate(asked))
    is_at_rest = False
    while not is_at_rest:
        decision = fleet.decide()
        is_at_rest = not (fleet.later or decision.starts or decision.stops) and is_settled(fleet)
        fleet.advance(60.0)
        assert fleet.now < BEGIN + 30_000.0, "it does not come to rest"
    running = [job for job in fleet.jobs.values() if job.state == "running"]
    waiting = [job for job in fleet.jobs.values() if job.state == "queued" and job.resources.least <= 8]
    free = {device.id for device in fleet.devices} - {device for job in running for device in job.devices}
    elastic = [job for job in running if job.resources.is_elastic]
    for job in running:
        most, named = job.resources.most or 8, set(job.resources.gpus)
        assert job.resources.least <= len(job.devices) <= most
        is_left = free & named if named else free
        assert waiting or not job.resources.is_elastic or len(job.devices) == most or not is_left
    spared = sum(len(job.devices) - job.resources.least for job in elastic)
    for first in itertools.islice(in_order(waiting, {}, fleet.now, 1e9), 1):
        named = set(first.resources.gpus)  # of which nobody is promised to spare any
        assert first.resources.least > (len(free & named) if named else len(free) + spared)


def is_settled(fleet: SimulatedFleet) -> bool:
    """Whether all that run may be stopped by now, however often they began, and no other stops."""
    return all(
        job.state == "queued" or (job.attempt_began is not None and fleet.now - job.attempt_began > 600.0)
        for job in fleet.jobs.values()
    )


@drawn(2)
@given(some.integers(0, 2**32), some.integers(1, 50), some.sampled_from((0.0, 0.2, 0.9)), some.booleans())
def test_a_thousand_devices_and_ten_thousand_jobs(seed: int, owners: int, elastic: float, is_mixed: bool) -> None:
    """Each decision is checked; few, since they take long."""
    chance = random.Random(seed)
    memory = dict.fromkeys(range(0, 1000, 7), 24) if is_mixed else None
    fleet = SimulatedFleet(machine(1000, memory=memory), SchedulingConfig(), stop_s=60.0)

    def asked() -> Resources:
        size, kind = chance.choice((1, 1, 1, 1, 2, 2, 4, 8, 40)), chance.random()
        common: dict[str, Any] = {"priority": chance.randint(0, 4), "memory_bytes": chance.choice((None, 40 * GIB))}
        if kind < elastic:
            return Resources(min_devices=size, max_devices=2 * size, **common)
        return Resources(size, preemptible=kind < 0.6, **common)

    fleet.add(
        (
            queued(f"j{number:05}", asked(), chance.choice((0, 0, 300)), f"o{number % owners}"),
            120.0 * chance.randint(1, 3),
        )
        for number in range(10_000)
    )
    for _ in range(3):
        fleet.decide()
        fleet.advance(300.0)
    assert len(fleet.ended) > 100
    assert max(len(decision.waits) for decision in fleet.decisions) > 8000
