"""A stop in the middle of an evaluation: all ranks leave it, and the resumed run makes up for it first of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.rank_pool import RankPool
from tests.ranks.evaluating import Evaluated, EvaluationFault, run_with
from tests.ranks.training import Case, fresh, largest_difference

KINDS = [("single", 1), ("data_parallel", 1), ("ddp", 2), ("ddp", 3), ("fsdp", 2)]


def case_of(directory: str, kind: str, **sections: Any) -> Case:
    replicas = {"replicas": 2} if kind == "data_parallel" else {}
    config = {
        "train": {"global_batch": 12, "epochs": 2},
        "parallel": {"kind": kind, "timeout_s": 20, **replicas},
        "evaluate": {"every": 2, "batch": 1},
        "checkpoint": {"at_end": True},
        **sections,
    }
    return Case(directory, config, num_rows=30, num_eval_rows=23)


def passes(world: int, kind: str) -> int:
    """Of one evaluation of 23 rows, as the last rank's model counts them, or the first replica's."""
    return 12 if kind == "data_parallel" else 23 // world


def check(first: list[Evaluated], second: list[Evaluated], expected: list[Evaluated], kind: str) -> None:
    for before, after, whole in zip(first, second, expected, strict=True):
        assert before.ended == first[0].ended and "SIGTERM" in before.ended and before.owes
        assert (after.ended, after.owes) == ("done", False)
        assert before.losses + after.losses == whole.losses
        assert after.history == whole.history
        assert kind == "fsdp" or largest_difference(after.weights, whole.weights) == 0


@pytest.mark.parametrize(("kind", "world"), KINDS)
@pytest.mark.parametrize("which", [1, 3])
def test_it_is_owed_and_made_first_thing(ranks: RankPool, tmp_path: Path, kind: str, world: int, which: int) -> None:
    """The first of them in the middle of an epoch, the third after the last update of the run."""
    expected = ranks.run(world, run_with, case_of(fresh(tmp_path), kind), None)
    directory, rank = fresh(tmp_path), world - 1
    stop_at = (which - 1) * passes(world, kind) + 3
    fault = EvaluationFault(stop_at=stop_at, rank=rank)
    first = ranks.run(world, run_with, case_of(directory, kind), fault, timeout=20)
    assert len(first[rank].history) == which - 1
    assert [event["event"] for event in first[0].events].count("evaluation_given_up") == 1
    second = ranks.run(world, run_with, case_of(directory, kind), None)
    check(first, second, expected, kind)
    assert len(first[rank].sizes) <= stop_at + 1, "it leaves with the batch in which the signal came"


def test_the_one_at_start_is_owed_too(ranks: RankPool, tmp_path: Path) -> None:
    evaluate = {"every": 2, "batch": 1, "at_start": True}
    expected = ranks.run(2, run_with, case_of(fresh(tmp_path), "ddp", evaluate=evaluate), None)
    case = case_of(fresh(tmp_path), "ddp", evaluate=evaluate)
    first = ranks.run(2, run_with, case, EvaluationFault(stop_at=2))
    assert [seen.losses for seen in first] == [[], []]
    check(first, ranks.run(2, run_with, case, None), expected, "ddp")


def test_a_schedule_that_follows_evaluations_makes_up_for_it_too(ranks: RankPool, tmp_path: Path) -> None:
    plateau = {
        **{"name": "torch", "scheduler": "ReduceLROnPlateau", "interval": "evaluation", "metric": "loss"},
        "options": {"patience": 0, "threshold": 10.0},
    }
    train = {"global_batch": 12, "epochs": 3, "schedule": plateau}
    expected = ranks.run(2, run_with, case_of(fresh(tmp_path), "ddp", train=train), None)
    case = case_of(fresh(tmp_path), "ddp", train=train)
    first = ranks.run(2, run_with, case, EvaluationFault(stop_at=14))
    check(first, ranks.run(2, run_with, case, None), expected, "ddp")
