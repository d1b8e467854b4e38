"""Sharded training gives the numbers of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rank_pool import RankPool
from tests.ranks.branches import Branched
from tests.ranks.sharded import (
    ALWAYS,
    FSDP,
    Case,
    Deep,
    Seen,
    partly_frozen,
    predict_several,
    train_branches,
    train_several,
)
from tests.ranks.training import largest_difference

# Which rows use the side layer; a window has 12, of which rank 0 of two takes the first six.
NEVER = [False]
ON_RANK_0 = [True] * 6 + [False] * 6
IN_ONE_PASS = [True] * 2 + [False] * 10
EVERY_SECOND = [True] * 12 + [False] * 12
OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "sgd", "momentum": 0.9, "weight_decay": 0.1},
    {"name": "adamw", "weight_decay": 0.1, "decay_all": True},
]


def compare(ranks: RankPool, folder: Path, world: int, cases: dict[str, dict[str, Any]], **fields: Any) -> None:
    """Each case under fsdp on `world` ranks against the first one's settings in one process."""
    (reference,) = ranks.run(1, train_several, [Case(str(folder / "alone"), {"kind": "single"}, **fields)])[0]
    assert len(set(reference.losses)) == len(reference.losses) == 6
    runs = []
    for name, case in cases.items():
        merged = {**fields, **case, "train": {**fields.get("train", {}), **case.get("train", {})}}
        runs.append(Case(str(folder / name), merged.pop("parallel", FSDP), **merged))
    for seen in ranks.run(world, train_several, runs):
        for record in seen:
            check(record, reference)


def check(record: Seen, reference: Seen) -> None:
    assert record.kind == "fsdp"
    torch.testing.assert_close(record.losses, reference.losses, rtol=0, atol=1e-10)
    torch.testing.assert_close(record.norms, reference.norms, rtol=0, atol=1e-10)
    assert largest_difference(record.weights, reference.weights) < 1e-10


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("case", [{}, {"aux": True}, {"lengths": (0, 0, 0, 0, 6, 2)}], ids=["tokens", "aux", "empty"])
def test_numbers_of_one_process_however_it_is_split(
    ranks: RankPool, tmp_path: Path, world: int, case: dict[str, Any]
) -> None:
    cases: dict[str, dict[str, Any]] = {
        "whole": {},
        "one": {"train": {"micro_batch": 1}},
        "two": {"train": {"micro_batch": 2}, "parallel": ALWAYS},
        "root": {"train": {"micro_batch": 1}, "parallel": {"kind": "fsdp", "reshard_after_forward": "always"}},
    }
    compare(ranks, tmp_path, world, cases, **case)


def test_fewer_samples_than_ranks(ranks: RankPool, tmp_path: Path) -> None:
    train = {"global_batch": 3, "micro_batch": 1}
    cases: dict[str, dict[str, Any]] = {"never": {}, "always": {"parallel": ALWAYS}}
    compare(ranks, tmp_path, 4, cases, train=train, num_rows=4)


@pytest.mark.parametrize("make", [Deep, partly_frozen], ids=["all", "frozen"])
@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.system)])
def test_norm_and_clipping(ranks: RankPool, tmp_path: Path, world: int, make: Any) -> None:
    """Case 23: accumulated or not, scaled or not, a part of the parameters frozen."""
    cases: dict[str, dict[str, Any]] = {
        f"{precision}-{micro}-{parallel['reshard_after_forward']}": {
            "train": {"precision": precision, "micro_batch": micro},
            "parallel": parallel,
        }
        for precision in ("fp32", "fp16")
        for micro in ("auto", 12 // world // 3)
        for parallel in (ALWAYS, {**FSDP, "reshard_after_forward": "never"})
    }
    optimizer = {"name": "sgd", "momentum": 0.9, "weight_decay": 0.0}
    train = {"global_batch": 12, "max_norm": 0.05, "optimizer": optimizer}
    compare(ranks, tmp_path, world, cases, train=train, num_rows=72, make=make)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_optimizers_on_parts(ranks: RankPool, tmp_path: Path, name: str) -> None:
    """On four ranks some have no row of a bias, and an optimizer state for it all the same."""
    train = {"optimizer": {"name": name, "weight_decay": 0.1, "momentum": 0.9}}
    compare(ranks, tmp_path, 4, {"parts": {}}, train=train)


def test_a_ready_optimizer_and_its_scheduler_follow_the_model(ranks: RankPool, tmp_path: Path) -> None:
    """Case 28: they are made before the model is sharded; its groups keep their options."""
    compare(ranks, tmp_path, 2, {"parts": {}}, ready=True)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 10])
def test_evaluation_takes_each_row_once(ranks: RankPool, tmp_path: Path, num_rows: int) -> None:
    case = Case(str(tmp_path / "one"), {"kind": "single"}, num_eval_rows=num_rows, every=2)
    ((reference,),) = ranks.run(1, train_several, [case])
    cases = [
        Case(str(tmp_path / f"{parallel['kind']}-{i}"), parallel, {"micro_batch": 2}, num_eval_rows=num_rows, every=2)
        for i, parallel in enumerate((FSDP, ALWAYS))
    ]
    for seen in ranks.run(3, train_several, cases):
        for record in seen:
            check(record, reference)
            assert len(record.evaluations) == 3
            for found, expected in zip(record.evaluations, reference.evaluations, strict=True):
                assert found.keys() == expected.keys() and found["count"] == num_rows
                torch.testing.assert_close(dict(found), dict(expected), rtol=0, atol=1e-10)


@pytest.mark.parametrize("num_rows", [0, 1, 5])
def test_predictions_in_the_order_of_the_rows(ranks: RankPool, tmp_path: Path, num_rows: int) -> None:
    ((expected,),) = ranks.run(1, predict_several, [Case(str(tmp_path / "one"), {"kind": "single"})], num_rows)
    for (found,) in ranks.run(3, predict_several, [Case(str(tmp_path / "three"), ALWAYS)], num_rows):
        assert len(found) == num_rows
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


UNUSED: dict[str, list[bool]] = {"never": NEVER, "rank-0": ON_RANK_0, "one-pass": IN_ONE_PASS, "second": EVERY_SECOND}
WHERE = {"never": "on all ranks", "rank-0": "on rank 1 only", "one-pass": "on rank 1 only", "second": "on all ranks"}


@pytest.mark.parametrize("reentrant", [None, False], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("uses", ["never", "rank-0", "one-pass", pytest.param("second", marks=pytest.mark.system)])
def test_parameters_without_gradient(ranks: RankPool, tmp_path: Path, uses: str, reentrant: bool | None) -> None:
    """Case 10: in a unit that all ranks run (here the root), they are zero where unused, and named once."""
    options: dict[str, Any] = {"global_batch": 12, "max_steps": 6}
    cases = [
        Branched(
            str(tmp_path / f"{number}-{micro}-{way}"),
            {**options, "micro_batch": micro, "optimizer": optimizer},
            UNUSED[uses],
            {"kind": "fsdp", "reshard_after_forward": way},
            reentrant=reentrant,
        )
        for number, optimizer in enumerate(OPTIMIZERS)
        for micro, way in (("auto", "always"), (2, "always"), (2, "never"))
    ]
    alone = [
        Branched(str(tmp_path / f"alone-{number}"), {**options, "optimizer": optimizer}, UNUSED[uses])
        for number, optimizer in enumerate(OPTIMIZERS)
    ]
    references = ranks.run(1, train_branches, alone)[0]
    for rank, seen in enumerate(ranks.run(2, train_branches, cases)):
        for number, found in enumerate(seen):
            reference = references[number // 3]
            torch.testing.assert_close(found.losses, reference.losses, rtol=0, atol=1e-10)
            assert largest_difference(found.weights, reference.weights) < 1e-10
            assert len(found.warnings) == (rank == 0)
            for warning in found.warnings:
                assert f"side.weight ({WHERE[uses]}), side.bias ({WHERE[uses]})" in warning
                assert "trunk" not in warning and "head" not in warning
