"""Two losses that take turns, and one rank without memory in the second one's turn: the first one's update stays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from drumline import RunConfig, Trainer
from tests.rank_pool import RankPool
from tests.ranks.training import fresh, largest_difference


class Pair(nn.Module):
    """Two parts, each trained by a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.left = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()
        self.right = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()


def train(directory: str, micro: int, where: str | None) -> tuple[dict[str, Tensor], int, int]:
    """Weights, generation and updates; where: the learner and phase in which rank 1 fails once."""
    model, state = Pair(), {"armed": where is not None, "updates": 0}

    def fail(phase: str) -> None:
        if state["armed"] and phase == where and state["updates"] == 2 and os.environ["RANK"] == "1":
            state["armed"] = False
            raise torch.OutOfMemoryError("CUDA out of memory. Planted")

    def left(model: Any, batch: list[Tensor]) -> Tensor:
        fail("left")
        loss: Tensor = (model.left(batch[0]) - model.right(batch[0]).detach()).square().mean()
        return loss

    def right(model: Any, batch: list[Tensor]) -> Tensor:
        fail("right")
        sums = batch[0].sum(1, keepdim=True)
        loss: Tensor = (model.right(batch[0]) + model.left(batch[0]).detach() - sums).square().mean()
        return loss

    def sgd(part: nn.Module, phase: str) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(part.parameters(), 0.05, momentum=0.9)
        optimizer.register_step_post_hook(lambda *_: fail(phase))
        return optimizer

    config = RunConfig.model_validate(
        {
            "run_dir": directory,
            "train": {"global_batch": 12, "micro_batch": micro, "max_steps": 6, "max_norm": None},
            "track": {"every": 1, "console": False},
            "checkpoint": {"at_end": False},
            "parallel": {"kind": "ddp", "timeout_s": 20},
            "loader": {"num_workers": 0},
        }
    )
    generator = torch.Generator().manual_seed(0)
    rows = TensorDataset(torch.randn(48, 4, dtype=torch.float64, generator=generator))
    optimizers = {"left": sgd(model.left, "left step"), "right": sgd(model.right, "right step")}
    with Trainer(model, config, rows, loss={"left": left, "right": right}, optimizer=optimizers) as trainer:
        for info in trainer.steps():
            state["updates"] = info.step
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        return weights, trainer._run.groups.side.generation, trainer._run.progress.step


@pytest.mark.parametrize("where", ["left", "right", "left step", "right step"])
def test_each_learner_makes_each_update_once(ranks: RankPool, tmp_path: Path, where: str) -> None:
    whole = ranks.run(2, train, fresh(tmp_path), 6, None)
    found = ranks.run(2, train, fresh(tmp_path), 6, where)
    assert [(generation, steps) for _, generation, steps in found] == [(1, 6)] * 2
    assert largest_difference(found[0][0], found[1][0]) == 0
    assert largest_difference(found[0][0], whole[0][0]) <= 1e-12
