"""static_graph is a promise about which parameters are used; those that never are do no harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rank_pool import RankPool
from tests.ranks.branches import Branched, train_branches
from tests.ranks.training import largest_difference

STATIC: dict[str, Any] = {"kind": "ddp", "static_graph": True}


@pytest.mark.parametrize("micro", ["auto", 2])
@pytest.mark.parametrize("uses", [[True], [False], [True] * 6 + [False] * 6], ids=["always", "never", "rank-0"])
def test_same_numbers_as_one_process(ranks: RankPool, tmp_path: Path, uses: list[bool], micro: int | str) -> None:
    train = {"global_batch": 12, "max_steps": 6, "micro_batch": micro, "optimizer": {"name": "adamw"}}
    ((one,),) = ranks.run(1, train_branches, [Branched(str(tmp_path / "one"), train, uses)])
    for (seen,) in ranks.run(2, train_branches, [Branched(str(tmp_path / "two"), train, uses, STATIC)]):
        torch.testing.assert_close(seen.losses, one.losses, rtol=0, atol=1e-10)
        assert largest_difference(seen.weights, one.weights) < 1e-10
