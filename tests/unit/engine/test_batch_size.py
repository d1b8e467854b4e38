"""The search for the largest batch, against made-up devices whose best size is known by trying all of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from drumline.engine.batch_size import MOST_TRIALS, Peak, Trial, best_size, decide

LIMIT = 100.0
Device = Callable[[int, bool], float]
"""Bytes by rows and whether the passes are those of training; above 110 of them memory runs out."""
CAPACITY = 110.0


def search(share: int, *devices: Device, even: bool = False, careful: bool = False) -> tuple[int, list[Trial]]:
    """What comes of it, and the trials."""
    trials: list[Trial] = []
    if careful:
        trials.append(Trial(0, tuple(Peak(device(0, False), LIMIT) for device in devices), False))
    while not (verdict := decide(trials, share, even=even)).is_found:
        used = [device(verdict.rows, verdict.is_proof) for device in devices]
        ran_out = any(each > CAPACITY for each in used)
        peaks = None if ran_out else tuple(Peak(each, LIMIT) for each in used)
        trials.append(Trial(verdict.rows, peaks, verdict.is_proof))
        assert len(trials) <= MOST_TRIALS
    return verdict.rows, trials


def line(start: float, slope: float) -> Device:
    return lambda rows, is_proof: start + slope * rows


def fewest_passes(share: int, device: Device) -> int:
    """Found by trying every number of rows."""
    most = max((rows for rows in range(1, share + 1) if device(rows, True) <= LIMIT), default=1)
    return best_size(share, most)


@pytest.mark.parametrize("share", [1, 2, 3, 4, 5, 7, 16, 50, 64, 1000])
@pytest.mark.parametrize("device", [line(0, 1), line(50, 1), line(98, 1), line(10, 0.01), line(20, 30), line(0, 0)])
def test_on_a_straight_line_the_answer_is_the_best_in_few_trials(share: int, device: Device) -> None:
    found, trials = search(share, device)
    assert found == fewest_passes(share, device)
    assert all(trial.fits for trial in trials), "no trial goes beyond the limit where the line is straight"
    assert len(trials) <= 8


def test_small_sizes_are_tried_first_and_grow_no_faster_than_fourfold() -> None:
    _, trials = search(4096, line(1, 0.01))
    sizes = [trial.rows for trial in trials]
    assert sizes[:2] == [1, 2] and all(b <= 4 * a for a, b in pairwise(sizes))


@pytest.mark.parametrize("share", [2, 3, 4, 7, 64])
@pytest.mark.parametrize("slope", [5.0, 30.0, 45.0, 60.0, 75.0])
def test_where_nothing_may_run_out_no_trial_does(share: int, slope: float) -> None:
    """As under fsdp, where the other ranks would be stuck: gradients (10) come with the first pass."""

    def sharded(rows: int, is_proof: bool) -> float:
        return 15 + (10 if rows else 0) + slope * rows

    found, trials = search(share, sharded, careful=True)
    assert all(trial.fits for trial in trials)
    assert found == fewest_passes(share, sharded)


def test_nothing_fits() -> None:
    assert search(64, line(120, 1)) == (1, [Trial(1, None, False)])  # memory runs out
    found, (trial,) = search(64, line(104, 1))
    assert found == 1 and trial.peaks is not None and not trial.fits


def test_memory_that_grows_faster_than_foretold_is_met_with_a_smaller_size() -> None:
    """As where a library takes a larger workspace from some size on; within one halving of the best."""

    def bent(rows: int, is_proof: bool) -> float:
        return 10 + rows * (1 if rows <= 16 else 3)

    found, trials = search(64, bent)
    best = fewest_passes(64, bent)
    assert best / 2 <= found <= best and bent(found, True) <= LIMIT
    assert not all(trial.fits for trial in trials)


def test_the_least_over_the_ranks_counts() -> None:
    assert search(64, line(10, 1), line(10, 2))[0] == fewest_passes(64, line(10, 2)) == 32
    assert search(64, line(10, 2), line(10, 1))[0] == 32


def test_what_compiling_saves_is_used() -> None:
    """Small trials run uncompiled and foretell 8; a proof takes a third of that, so that a larger one is worth it."""

    def compiled(rows: int, is_proof: bool) -> float:
        return 20 + rows * (3 if is_proof else 9)

    found, trials = search(64, compiled, even=True)
    assert found == 16 and [t.rows for t in trials if t.is_proof] == [8, 16]


def test_a_proof_that_fails_leaves_the_one_before() -> None:
    def compiled(rows: int, is_proof: bool) -> float:
        return 200.0 if rows > 8 else 20 + rows * (2 if is_proof else 9)

    assert search(64, compiled, even=True)[0] == 8


@pytest.mark.parametrize(
    ("share", "most", "size", "even"),
    [
        (64, 64, 64, 64),
        (64, 63, 32, 32),
        (64, 30, 22, 16),
        (64, 21, 16, 16),
        (7, 3, 3, 3),
        (48, 20, 16, 16),
        (5, 1, 1, 1),
    ],
)
def test_passes_are_as_few_as_can_be_and_as_small_as_that_allows(share: int, most: int, size: int, even: int) -> None:
    assert best_size(share, most) == size
    assert best_size(share, most, even=True) == even
