"""A short fixed set of seeds of chaos.py; the long runs are made by hand, their logs are in benchmarks/results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import victim
from tests.chaos.chaos import Chaos
from tests.chaos.schedule import MOMENTS, WEIGHTS, draw

STEPS, FAULTS = 110, 4


@pytest.mark.parametrize(
    ("kind", "ranks", "seed"), [("single", 1, 10), pytest.param("ddp", 2, 3, marks=pytest.mark.long), ("fsdp", 2, 9)]
)
@pytest.mark.system
def test_a_disturbed_run_comes_to_the_same(kind: str, ranks: int, seed: int, tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, kind, ranks, STEPS)
    print(chaos.run(draw(seed, FAULTS, STEPS, ranks, victim.EPOCH)))


def test_a_seed_gives_the_same_faults_and_all_kinds_come_in_time() -> None:
    assert draw(3, 50, 300, 2, 21) == draw(3, 50, 300, 2, 21) != draw(4, 50, 300, 2, 21)
    many = draw(0, 1000, 300, 2, 21)
    assert [fault.what for fault in many if fault.rank not in (0, 1)] == []
    assert {fault.what for fault in many} == set(WEIGHTS)
    assert {fault.moment for fault in many} == set(MOMENTS)
    assert sum(fault.step % 21 == 0 for fault in many) > 100
