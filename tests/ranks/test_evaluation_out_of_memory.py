"""Case 13 (a), (c), (d), (e): memory that runs out in an evaluation or a prediction shrinks its batches alone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.rank_pool import RankError, RankPool
from tests.ranks.evaluating import Evaluated, EvaluationFault, run_with
from tests.ranks.training import Case, fresh, largest_difference

EVAL_ROWS = 29


def case_of(directory: str, kind: str = "ddp", **sections: Any) -> Case:
    replicas = {"replicas": 2} if kind == "data_parallel" else {}
    config = {
        "train": {"global_batch": 12, "epochs": 2},
        "parallel": {"kind": kind, "timeout_s": 20, **replicas},
        "evaluate": {"every": "epoch"},
        **sections,
    }
    return Case(directory, config, num_eval_rows=EVAL_ROWS)


def check_alike(found: list[Evaluated], expected: Evaluated) -> None:
    """Weights and training's passes as if nothing had happened, the same metrics but for the order of additions."""
    for seen in found:
        assert largest_difference(seen.weights, expected.weights) == 0
        assert seen.losses == expected.losses
        assert seen.history == found[0].history and len(seen.history) == len(expected.history)
        for metrics, others in zip(seen.history, expected.history, strict=True):
            assert metrics == pytest.approx(others, abs=1e-12) and metrics["count"] == EVAL_ROWS


@pytest.mark.parametrize(("kind", "world"), [("single", 1), ("data_parallel", 1), ("ddp", 2), ("ddp", 3)])
def test_all_ranks_evaluate_anew_with_half_and_training_stays(
    ranks: RankPool, tmp_path: Path, kind: str, world: int
) -> None:
    undisturbed = ranks.run(world, run_with, case_of(fresh(tmp_path), kind), None)
    share = -(-12 // (2 if kind == "data_parallel" else world))
    fault = EvaluationFault(above=share // 2, rank=world - 1)
    began = time.monotonic()
    found = ranks.run(world, run_with, case_of(fresh(tmp_path), kind), fault)
    assert time.monotonic() - began < 10
    for seen, expected in zip(found, undisturbed, strict=True):
        check_alike(found, expected)
        assert seen.trained == expected.trained and seen.micro_batch is None
        assert seen.evaluation_batch == share // 2
        assert max(seen.sizes[1:]) <= share // 2 or kind != "single"
    assert found[-1].alive == [False], "what the failed pass had made is dead when the evaluation begins anew"
    told = [event for event in found[0].events if event["event"] == "out_of_memory"]
    assert [(e["rank"], e["phase"], e["from"], e["to"]) for e in told] == [(world - 1, "evaluation", share, share // 2)]


def test_it_shrinks_as_often_as_it_must(ranks: RankPool, tmp_path: Path) -> None:
    (expected, _) = ranks.run(2, run_with, case_of(fresh(tmp_path), evaluate={"batch": 15}), None)
    found = ranks.run(2, run_with, case_of(fresh(tmp_path), evaluate={"batch": 15}), EvaluationFault(above=2))
    check_alike(found, expected)
    assert [seen.evaluation_batch for seen in found] == [1, 1]  # 14 of rank 1's 14 rows, then 7, 3, 1
    assert [e["from"] for e in found[0].events if e["event"] == "out_of_memory"] == [14, 7, 3]


def test_the_other_ranks_leave_their_passes_at_once(ranks: RankPool, tmp_path: Path) -> None:
    case = case_of(fresh(tmp_path), train={"global_batch": 2, "max_steps": 1}, evaluate={"batch": 2})
    seen, failed = ranks.run(2, run_with, case, EvaluationFault(above=1))
    assert failed.sizes[:2] == [2, 1] and len(failed.sizes) == 1 + 14
    assert len(seen.sizes) < 8 + 15, "of its eight batches of two, some were not run"
    assert seen.history == failed.history


def test_a_sample_that_does_not_fit_ends_the_run_on_all_ranks(ranks: RankPool, tmp_path: Path) -> None:
    with pytest.raises(RankError, match="rank 1 has no memory for one sample of the evaluation") as caught:
        ranks.run(2, run_with, case_of(fresh(tmp_path)), EvaluationFault(above=0), timeout=20)
    assert {failure.type_name for failure in caught.value.errors.values()} == {"OutOfMemory"}


def test_without_recovery_the_error_stays(ranks: RankPool, tmp_path: Path) -> None:
    train = {"global_batch": 12, "epochs": 1, "out_of_memory": {"recover": False}}
    with pytest.raises(RankError, match="Planted") as caught:
        ranks.run(2, run_with, case_of(fresh(tmp_path), train=train), EvaluationFault(above=1), timeout=20)
    assert caught.value.rank == 1 and caught.value.type_name == "OutOfMemoryError"


def test_a_resume_keeps_the_size(ranks: RankPool, tmp_path: Path) -> None:
    directory = fresh(tmp_path)
    first: dict[str, Any] = {"train": {"global_batch": 12, "epochs": 1}, "checkpoint": {"at_end": True}}
    ranks.run(2, run_with, case_of(directory, **first), EvaluationFault(above=3))
    more: dict[str, Any] = {"train": {"global_batch": 12, "epochs": 2}, "checkpoint": {"at_end": True}}
    for seen in ranks.run(2, run_with, case_of(directory, **more), EvaluationFault(above=3)):
        assert seen.evaluation_batch == 3 and max(seen.sizes) == 3
        assert len([event for event in seen.events if event["event"] == "out_of_memory"]) == 1


@pytest.mark.parametrize(("kind", "world"), [("single", 1), ("data_parallel", 1), ("ddp", 2), ("ddp", 3)])
def test_predictions_come_once_and_in_order(ranks: RankPool, tmp_path: Path, kind: str, world: int) -> None:
    case = case_of(fresh(tmp_path), kind, evaluate={"every": "epoch", "batch": 2})
    for seen in ranks.run(world, run_with, case, EvaluationFault(above=1, rank=world - 1), _model, 17):
        assert seen.predictions == list(range(17))
        assert seen.evaluation_batch == 1 and seen.micro_batch is None


def test_a_prediction_leaves_the_evaluations_size_alone(ranks: RankPool, tmp_path: Path) -> None:
    for seen in ranks.run(2, predict_only, case_of(fresh(tmp_path)), EvaluationFault(above=2)):
        assert seen.predictions == list(range(17)) and seen.evaluation_batch is None


def predict_only(case: Case, fault: EvaluationFault) -> Evaluated:
    config = {**case.config, "evaluate": {**case.config.get("evaluate", {}), "every": 1000}}
    return run_with(Case(case.directory, config, num_eval_rows=0), fault, _model, 17)


def _model() -> Any:
    from tests.ranks.training import make_model

    return make_model()


def test_sharded_ranks_save_and_evaluate_in_new_processes(ranks: RankPool, tmp_path: Path) -> None:
    """The others are stuck in a collective of a model that cannot be rebuilt: what is committed is saved."""
    expected, _ = ranks.run(2, run_with, case_of(fresh(tmp_path), "fsdp"), None)
    case, fault = case_of(fresh(tmp_path), "fsdp", checkpoint={"at_end": True}), EvaluationFault(above=3)
    began = time.monotonic()
    with pytest.raises(RankError) as caught:
        ranks.run(2, run_with, case, fault, timeout=20)
    assert {failure.type_name for failure in caught.value.errors.values()} == {"RestartNeeded"}
    assert time.monotonic() - began < 15
    for seen in ranks.run(2, run_with, case, fault):
        assert [m["loss"] for m in seen.history] == pytest.approx([m["loss"] for m in expected.history], abs=1e-12)
        assert (seen.evaluation_batch, seen.micro_batch, seen.owes, seen.ended) == (3, None, False, "done")
        assert max(seen.sizes) == 3


def test_sharded_ranks_save_and_predict_in_new_processes(ranks: RankPool, tmp_path: Path) -> None:
    case = case_of(fresh(tmp_path), "fsdp", evaluate={"batch": 6}, checkpoint={"at_end": True})
    with pytest.raises(RankError) as caught:
        ranks.run(2, predict_only, case, EvaluationFault(above=3), timeout=20)
    assert {failure.type_name for failure in caught.value.errors.values()} == {"RestartNeeded"}
    for seen in ranks.run(2, predict_only, case, EvaluationFault(above=3)):
        assert seen.predictions == list(range(17)) and not seen.owes
