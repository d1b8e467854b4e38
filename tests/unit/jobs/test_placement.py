"""Which devices are taken."""

from __future__ import annotations

import random

from drumline.jobs.placement import ANY, Pool
from drumline.jobs.records import Device, Resources
from tests.unit.jobs.simulated_fleet import GIB, machine

LARGE = Resources(memory_bytes=40 * GIB)
NAMED = Resources(gpus=tuple(f"GPU-{number:03}" for number in range(1, 30, 4)))


def ids(devices: list[Device]) -> list[str]:
    """Numbers only."""
    return [device.id.removeprefix("GPU-00") for device in devices]


def test_a_job_goes_into_one_group_where_it_fits_and_into_the_smallest_such() -> None:
    pool = Pool(machine(8, 4))
    assert ids(pool.take(1)) == ["0"]
    assert ids(pool.take(2)) == ["1", "2"]
    assert ids(pool.take(4)) == ["4", "5", "6", "7"]
    assert ids(pool.take(1)) == ["3"] and pool.count() == 0


def test_one_that_fits_into_none_takes_the_largest_first() -> None:
    pool = Pool(machine(9, 3))
    pool.take(1)
    assert ids(pool.take(5)) == ["3", "4", "5", "1", "2"]


def test_memory_counts_in_the_choice_of_the_group() -> None:
    pool = Pool(machine(8, 4, {0: 24, 1: 24, 2: 24}))
    assert (pool.count(), pool.count(LARGE)) == (8, 5)
    assert ids(pool.take(2, LARGE)) == ["4", "5"]
    assert ids(pool.take(3, LARGE)) == ["6", "7", "3"]
    assert (pool.count(), pool.count(LARGE)) == (3, 0)


def test_named_ones_are_taken_from_one_group_where_they_fit_there() -> None:
    pool = Pool(machine(8, 4))
    named = Resources(gpus=("GPU-001", "GPU-004", "GPU-006", "GPU-099"))
    assert (pool.count(), pool.count(named)) == (8, 3)
    assert ids(pool.take(2, named)) == ["4", "6"]
    assert ids(pool.take(1, named)) == ["1"]
    assert (pool.count(), pool.count(named)) == (5, 0)


def test_where_memory_is_not_known_it_is_not_asked_for() -> None:
    assert ids(Pool([Device("GPU-009")]).take(1, LARGE)) == ["9"]


def test_each_device_is_taken_once_and_can_be_put_back() -> None:
    chance = random.Random(3)
    pool, out = Pool(machine(30, 8, dict.fromkeys(range(0, 30, 3), 24))), list[Device]()
    for _ in range(500):
        asked = chance.choice((ANY, LARGE, NAMED))
        if count := min(pool.count(asked), chance.randint(0, 9)):
            taken = pool.take(count, asked)
            assert len(taken) == count and not set(taken) & set(out)
            assert asked is not LARGE or all((device.memory_bytes or 0) >= 40 * GIB for device in taken)
            assert asked is not NAMED or all(device.id in NAMED.gpus for device in taken)
            out += taken
        chance.shuffle(out)
        back = out[: chance.randint(0, 9)]
        out = out[len(back) :]
        pool.put(back)
        assert pool.count() == 30 - len(out)
        assert pool.count(NAMED) == len(NAMED.gpus) - sum(device.id in NAMED.gpus for device in out)
        assert pool.count(LARGE) == 20 - sum((device.memory_bytes or 0) > 40 * GIB for device in out)
