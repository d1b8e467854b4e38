"""What can be set for ddp changes how gradients travel, not what comes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rank_pool import RankPool
from tests.ranks.training import Case, Record, largest_difference, train

SETTINGS: list[dict[str, Any]] = [
    {"bucket_mb": 1e-5},
    {"gradient_as_bucket_view": False},
    {"static_graph": True},
    {"find_unused": "always"},
    {"find_unused": "never"},
    {"broadcast_buffers": False},
    {"backend": "gloo"},
]


def train_several(cases: list[Case]) -> list[Record]:
    return [train(case) for case in cases]


@pytest.mark.parametrize("micro", ["auto", 1])
def test_every_setting_gives_the_same_numbers(ranks: RankPool, tmp_path: Path, micro: int | str) -> None:
    settings = {"train": {"global_batch": 7, "max_steps": 6, "micro_batch": micro}}
    (expected,) = ranks.run(1, train, Case(str(tmp_path / "expected"), settings))
    cases = [
        Case(str(tmp_path / str(number)), {**settings, "parallel": {"kind": "ddp", "timeout_s": 20, **options}})
        for number, options in enumerate(SETTINGS)
    ]
    for records in ranks.run(3, train_several, cases):
        for record in records:
            torch.testing.assert_close(record.losses, expected.losses, rtol=0, atol=1e-10)
            torch.testing.assert_close(record.norms, expected.norms, rtol=0, atol=1e-10)
            assert largest_difference(record.weights, expected.weights) < 1e-10
