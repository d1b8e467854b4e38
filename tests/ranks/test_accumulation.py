"""Accumulation keeps gradients to itself until the last pass: as many all-reduces a window as without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from drumline import Trainer
from drumline.parallel.compression import SentBucket, Wire
from drumline.parallel.ddp import Ddp
from tests.rank_pool import RankPool
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, fresh, make_model

STEPS = 4


class Counted(Wire):
    """Counts the buckets that it sums."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        self.sums = 0

    def sum(self, bucket: SentBucket) -> torch.futures.Future[torch.Tensor]:
        self.sums += 1
        return super().sum(bucket)


def sums_by_window(directory: str, micro: int | str, parallel: dict[str, Any]) -> list[int]:
    """How many buckets were summed in each window but the first, which lays them out."""
    train = {"global_batch": 8, "micro_batch": micro, "max_steps": STEPS}
    config = config_of(Case(directory, {"train": train, "parallel": {"kind": "ddp", "timeout_s": 20, **parallel}}))
    found: list[int] = []
    with Trainer(make_model(), config, MaskedRows(37), loss=MaskedRegression([])) as trainer:
        steps = trainer.steps()
        next(steps)
        strategy = trainer._run.strategy
        assert isinstance(strategy, Ddp)
        reduction = strategy._replicas["main"].reduction
        reduction.wire = wire = Counted(strategy._group)
        for _ in steps:
            found.append(wire.sums - sum(found))
    return found


@pytest.mark.parametrize("options", [{}, {"find_unused": "always"}, {"gradient_as_bucket_view": False}])
@pytest.mark.parametrize(("bucket_mb", "least"), [(25, 1), (1e-5, 3)])
def test_an_accumulated_window_is_reduced_once(
    ranks: RankPool, tmp_path: Path, options: dict[str, Any], bucket_mb: float, least: int
) -> None:
    parallel = {"bucket_mb": bucket_mb, **options}
    whole, *_ = ranks.run(2, sums_by_window, fresh(tmp_path), "auto", parallel)
    assert min(whole) >= least and len(set(whole)) == 1
    for micro in (1, 3):
        assert ranks.run(2, sums_by_window, fresh(tmp_path), micro, parallel) == [whole, whole]
