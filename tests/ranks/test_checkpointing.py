"""Blocks that are computed twice change no number, on any number of ranks, whatever a rank uses of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline import Trainer
from tests.rank_pool import RankPool
from tests.ranks.branches import WIDTH, Rows, Seen, squared_error, warnings_logged
from tests.ranks.training import Case, config_of, fresh, largest_difference

KINDS: list[dict[str, Any]] = [{"kind": "selective"}, {"kind": "selective", "every": 2}, {"kind": "full"}]
ON_RANK_0 = [True] * 6 + [False] * 6


class Stack(nn.Module):
    """Four blocks with dropout, of which the last one runs only for batches with a row that uses it."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, WIDTH)) for _ in range(4)
        )
        self.head = nn.Linear(WIDTH, 1)
        self.double()

    def forward(self, x: Tensor, use: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            if number < 3 or bool(use.any()):
                x = x + block(x) * (use[:, None] if number == 3 else 1)
        return self.head(x).squeeze(-1)  # type: ignore[no-any-return]


def train(directory: str, checkpointing: dict[str, Any], uses: Sequence[bool], dropout: float, kind: str) -> Seen:
    settings = {"global_batch": 12, "max_steps": 6, "micro_batch": 2, "shuffle": False, "checkpointing": checkpointing}
    config = config_of(Case(directory, {"train": settings, "parallel": {"kind": kind, "timeout_s": 20}}))
    losses = []
    with (
        warnings_logged() as warnings,
        Trainer(Stack(dropout), config, Rows(72, uses), loss=squared_error) as trainer,
    ):
        for info in trainer.steps():
            assert info.logged is not None
            losses.append(info.logged["loss"])
        return Seen(losses, {name: value.clone() for name, value in trainer.model.state_dict().items()}, warnings)


@pytest.mark.parametrize("checkpointing", KINDS, ids=["selective", "every", "full"])
def test_parameters_that_one_rank_does_not_use(ranks: RankPool, tmp_path: Path, checkpointing: dict[str, Any]) -> None:
    (one,) = ranks.run(1, train, fresh(tmp_path), {"kind": "none"}, ON_RANK_0, 0.0, "auto")
    seen, other = ranks.run(2, train, fresh(tmp_path), checkpointing, ON_RANK_0, 0.0, "ddp")
    torch.testing.assert_close(seen.losses, one.losses, rtol=0, atol=1e-10)
    assert largest_difference(seen.weights, one.weights) < 1e-10
    assert largest_difference(seen.weights, other.weights) == 0
    (warning,) = seen.warnings
    assert "blocks.3.0.weight (on rank 1 only)" in warning and "blocks.2" not in warning


@pytest.mark.parametrize("checkpointing", KINDS, ids=["selective", "every", "full"])
def test_dropout_draws_the_same_twice(ranks: RankPool, tmp_path: Path, checkpointing: dict[str, Any]) -> None:
    plain, _ = ranks.run(2, train, fresh(tmp_path), {"kind": "none"}, [True], 0.3, "ddp")
    seen, _ = ranks.run(2, train, fresh(tmp_path), checkpointing, [True], 0.3, "ddp")
    assert seen.losses == plain.losses
    assert largest_difference(seen.weights, plain.weights) == 0


@pytest.mark.parametrize("checkpointing", KINDS, ids=["selective", "every", "full"])
def test_sharded_blocks(ranks: RankPool, tmp_path: Path, checkpointing: dict[str, Any]) -> None:
    """What fsdp has gathered for a block's backward pass is what the block computes with again."""
    (one,) = ranks.run(1, train, fresh(tmp_path), {"kind": "none"}, [True], 0.0, "auto")
    seen, _ = ranks.run(2, train, fresh(tmp_path), checkpointing, [True], 0.0, "fsdp")
    torch.testing.assert_close(seen.losses, one.losses, rtol=0, atol=1e-10)
