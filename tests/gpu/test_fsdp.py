"""Sharded training on real GPUs, one process each; on one GPU it is `single`. Run: pytest -m gpu."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import drumline
from tests.ranks.sharded import ALWAYS, FSDP, Case, checkpoint, on_meta_but_on_rank_0, train_several
from tests.ranks.test_fsdp_models import train_half
from tests.ranks.training import largest_difference

pytestmark = pytest.mark.gpu

TRAIN: dict[str, Any] = {
    "micro_batch": 2,
    "max_norm": 0.1,
    "precision": "fp32",
    "optimizer": {"name": "adamw", "weight_decay": 0.1},
    "schedule": {"name": "cosine", "warmup_steps": 2},
    "lr": 0.01,
    "averaging": {"kind": "ema", "decay": 0.9},
}
WAYS: dict[str, dict[str, Any]] = {
    "never": {**FSDP, "reshard_after_forward": "never"},
    "always": ALWAYS,
    "offload": {**ALWAYS, "offload": True},
}


def test_numbers_of_the_cpu_and_after_a_resume(tmp_path: Path) -> None:
    plain = Case(str(tmp_path / "cpu"), {"kind": "single"}, TRAIN, num_eval_rows=5, every=2, device="cpu")
    (expected,) = train_several([plain])
    cases = []
    for name, way in WAYS.items():
        directory = str(tmp_path / name)
        case = replace(plain, directory=directory, parallel=way, device="auto", save=3)
        cases += [case, replace(case, directory=f"{directory}-2", load=checkpoint(directory, 3), save=None)]
    for record in drumline.launch(train_several, (cases,)):
        for found, since in zip(record, (0, 3) * len(WAYS), strict=True):
            torch.testing.assert_close(found.losses, expected.losses[since:], rtol=0, atol=1e-10)
            torch.testing.assert_close(found.norms, expected.norms[since:], rtol=0, atol=1e-10)
            assert largest_difference(found.weights, expected.weights) < 1e-10


def test_values_come_from_rank_0(tmp_path: Path) -> None:
    case = Case(str(tmp_path / "meta"), FSDP, make=on_meta_but_on_rank_0)
    for (found,) in drumline.launch(train_several, ([case],)):
        assert all(torch.isfinite(value).all() for value in found.weights.values())
        assert len(set(found.losses)) == 6


def test_half_precision_gathers_rounded_weights(tmp_path: Path) -> None:
    expected, _ = train_half(str(tmp_path / "one"), {"kind": "single"})
    for number, way in enumerate((FSDP, ALWAYS, {**ALWAYS, "reduce_precision": "bf16"})):
        records = drumline.launch(train_half, (str(tmp_path / str(number)), way))
        for losses, types in records:
            torch.testing.assert_close(losses, expected, rtol=0.02, atol=0)
            assert types == ["torch.bfloat16" if len(records) > 1 else "torch.float32"]
