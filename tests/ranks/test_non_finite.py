"""A loss or gradient that is not finite: all ranks stop, or all skip the same update and nothing else moves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rank_pool import RankPool
from tests.ranks.spoilt import Ended, Spoilt, train_spoilt
from tests.ranks.training import fresh, largest_difference

# Rank 1 of two has rows 4 to 7 of the first update, 20 to 23 of the third.
IN_FIRST, IN_THIRD = 5, 21
SGD = {"optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 0.1}}
COSINE = {"schedule": {"name": "cosine"}, "max_steps": 7}


def run(ranks: RankPool, world: int, case: Spoilt) -> Ended:
    """What rank 0 saw, after a look at whether all ranks saw the same."""
    ended, *others = ranks.run(world, train_spoilt, case, timeout=15)
    for other in others:
        assert largest_difference(other.weights, ended.weights) == 0
        assert (other.steps, other.skipped, other.error) == (ended.steps, ended.skipped, ended.error)
        assert other.rates == ended.rates and other.scales == ended.scales
    return ended


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("ready", [False, True], ids=["fused", "ready"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_stop_ends_every_rank_before_the_update(
    ranks: RankPool, tmp_path: Path, world: int, ready: bool, value: float
) -> None:
    ended = run(ranks, world, Spoilt(fresh(tmp_path), SGD, {IN_THIRD: value}, ready=ready))
    assert ended.error == "NonFiniteError"
    assert "update 3" in ended.message
    assert ended.steps == [1, 2]
    before = run(ranks, world, Spoilt(fresh(tmp_path), SGD, keep=range(16), ready=ready))
    assert before.steps == [1, 2]
    assert largest_difference(ended.weights, before.weights) == 0


@pytest.mark.parametrize("ready", [False, True], ids=["fused", "ready"])
@pytest.mark.parametrize("micro", ["auto", 1])
def test_skip_leaves_out_the_update_and_nothing_else(
    ranks: RankPool, tmp_path: Path, ready: bool, micro: int | str
) -> None:
    settings: dict[str, Any] = {**SGD, **COSINE, "non_finite": "skip", "micro_batch": micro}
    rest = [row for row in range(64) if row not in range(16, 24)]
    without = run(ranks, 1, Spoilt(fresh(tmp_path), settings, keep=rest, ready=ready))
    one = run(ranks, 1, Spoilt(fresh(tmp_path), settings, {IN_THIRD: math.nan}, ready=ready))
    two = run(ranks, 2, Spoilt(fresh(tmp_path), settings, {IN_THIRD: math.nan}, ready=ready))
    for ended in (one, two):
        assert ended.error == ""
        assert ended.skipped == 1 and without.skipped == 0
        assert any("update 3 skipped" in warning for warning in ended.warnings)
        torch.testing.assert_close(ended.losses, without.losses, rtol=0, atol=1e-10)
        assert ended.rates == without.rates
        assert largest_difference(ended.weights, without.weights) < 1e-10
    if ready:
        assert one.rates == pytest.approx([0.05 * 0.5**update for update in range(7)], rel=1e-6)
    assert len(one.rates) == len(set(one.rates)) == 7


def test_too_many_skips_in_a_row_end_every_rank(ranks: RankPool, tmp_path: Path) -> None:
    settings = {**SGD, "non_finite": "skip", "max_skipped": 2}
    ended = run(ranks, 2, Spoilt(fresh(tmp_path), settings, {IN_THIRD: math.nan, 29: math.nan}))
    assert ended.error == "NonFiniteError"
    assert "2 updates in a row" in ended.message
    apart = run(ranks, 2, Spoilt(fresh(tmp_path), settings, {IN_THIRD: math.nan, 37: math.nan}))
    assert apart.error == "" and apart.skipped == 2


def test_a_skipped_update_is_not_logged_or_evaluated_again(ranks: RankPool, tmp_path: Path) -> None:
    settings = {**SGD, "non_finite": "skip", "max_steps": 7}
    case = Spoilt(fresh(tmp_path), settings, {IN_THIRD: math.nan}, track_every=2, num_eval_rows=5, evaluate_every=2)
    ended = run(ranks, 2, case)
    assert ended.logged == [2, 4, 6, 7]
    assert ended.evaluated == [2, 4, 6, 7]
    assert all(math.isfinite(loss) for loss in ended.losses)


@pytest.mark.parametrize("row", [IN_THIRD, 61], ids=["third", "last"])
def test_the_end_is_logged_and_evaluated_although_an_update_is_missing(
    ranks: RankPool, tmp_path: Path, row: int
) -> None:
    settings = {**SGD, "non_finite": "skip"}
    case = Spoilt(fresh(tmp_path), settings, {row: math.nan}, track_every=100, num_eval_rows=5)
    ended = run(ranks, 2, case)
    assert ended.logged == ended.evaluated == [7]
    assert ended.skipped == 1 and math.isfinite(ended.losses[0])


@pytest.mark.parametrize("double", [True, False], ids=["float64", "float32"])
def test_fp16_overflow_on_one_rank_is_skipped_by_all(ranks: RankPool, tmp_path: Path, double: bool) -> None:
    settings = {**SGD, **COSINE, "precision": "fp16"}
    case = Spoilt(fresh(tmp_path), settings, {IN_FIRST: math.inf}, single_precision=not double)
    ended = run(ranks, 2, case)
    assert ended.error == ""
    assert ended.skipped == 1
    assert ended.scales == [32768.0] * 8
    assert ended.steps == [0, 1, 2, 3, 4, 5, 6, 7]
    assert ended.rates[0] == pytest.approx(0.05)
    assert len(set(ended.rates)) == 7
    assert all(math.isfinite(loss) for loss in ended.losses) and len(ended.losses) == 7
    one = run(ranks, 1, Spoilt(fresh(tmp_path), settings, {IN_FIRST: math.inf}, single_precision=not double))
    assert one.rates == ended.rates
    tolerance = 1e-10 if double else 1e-3
    assert largest_difference(one.weights, ended.weights) < tolerance


def test_fp16_overflows_in_a_row_end_every_rank(ranks: RankPool, tmp_path: Path) -> None:
    settings = {**SGD, "precision": "fp16", "max_skipped": 3}
    spoilt = dict.fromkeys(range(5, 64, 8), math.inf)
    ended = run(ranks, 2, Spoilt(fresh(tmp_path), settings, spoilt))
    assert ended.error == "NonFiniteError"
    assert "3 updates in a row" in ended.message
    assert ended.scales == [32768.0, 16384.0]


def test_bf16_learns_on_two_ranks(ranks: RankPool, tmp_path: Path) -> None:
    settings = {**SGD, "precision": "bf16", "epochs": 3}
    ended = run(ranks, 2, Spoilt(fresh(tmp_path), settings, single_precision=True))
    exact = run(ranks, 2, Spoilt(fresh(tmp_path), {**SGD, "epochs": 3}, single_precision=True))
    assert len(ended.losses) == 24
    assert ended.losses != exact.losses
    torch.testing.assert_close(ended.losses, exact.losses, rtol=0.05, atol=0.02)
