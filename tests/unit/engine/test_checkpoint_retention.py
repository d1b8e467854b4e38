from __future__ import annotations

from itertools import pairwise

import pytest

from drumline.engine.checkpoint_retention import to_prune

LOSSES = {10: 0.5, 20: 0.2, 30: None, 40: 0.4, 50: float("nan"), 60: 0.9}


@pytest.mark.parametrize(
    ("keep", "keep_best", "mode", "stays"),
    [
        (None, 0, "min", [10, 20, 30, 40, 50, 60]),
        (None, 1, "min", [10, 20, 30, 40, 50, 60]),
        (1, 0, "min", [60]),
        (3, 0, "min", [40, 50, 60]),
        (1, 1, "min", [20, 60]),
        (1, 2, "min", [20, 40, 60]),
        (2, 1, "max", [50, 60]),
        (2, 2, "max", [10, 50, 60]),
        (1, 9, "max", [10, 20, 40, 60]),
        (9, 0, "min", [10, 20, 30, 40, 50, 60]),
    ],
)
def test_newest_and_best_stay(keep: int | None, keep_best: int, mode: str, stays: list[int]) -> None:
    gone = to_prune(LOSSES, keep, keep_best, mode)  # type: ignore[arg-type]
    assert sorted(LOSSES.keys() - set(gone)) == stays
    assert all(later > earlier for later, earlier in pairwise(gone))


def test_of_equal_ones_the_later_is_kept() -> None:
    assert to_prune({1: 0.5, 2: 0.5, 3: 0.5, 4: None}, 1, 1, "min") == [2, 1]


def test_the_only_one_stays() -> None:
    assert to_prune({7: None}, 1, 0, "min") == []
    assert to_prune({}, 1, 0, "min") == []
