"""A short fixed set of kills of infer_kills.py; the long runs are made by hand: INFER_KILLS=30, or the program."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.chaos.infer_kills import InferKills, draw

SEED = 36
"""Of the first six, launcher, worker and a stop come while rows are answered, two at the start, one at the end."""
KILLS = int(os.environ.get("INFER_KILLS", "4"))


@pytest.mark.system
def test_a_prediction_that_is_killed_again_and_again_comes_to_the_same_bytes(tmp_path: Path) -> None:
    kills = InferKills(tmp_path, 100, SEED)
    try:
        print(kills.run(KILLS))
    finally:
        kills.close()


def test_all_kinds_of_kills_come_at_all_moments() -> None:
    chance = random.Random(0)
    drawn = [draw(chance) for _ in range(300)]
    assert len({(kill.what, kill.moment) for kill in drawn}) == 9
    assert [draw(random.Random(5)) for _ in range(2)] == [draw(random.Random(5))] * 2
