"""A ready scheduler moves once a completed update, whatever the world size and the accumulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from drumline import Trainer
from tests.rank_pool import RankPool
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, fresh, largest_difference, make_model

SCHEDULERS: dict[str, tuple[type[torch.optim.lr_scheduler.LRScheduler], dict[str, Any]]] = {
    "step": (torch.optim.lr_scheduler.StepLR, {"step_size": 1, "gamma": 0.5}),
    "one-cycle": (torch.optim.lr_scheduler.OneCycleLR, {"max_lr": 0.1, "total_steps": 4}),
}
Seen = tuple[list[float], list[float], dict[str, torch.Tensor]]


def train_with(directories: list[str], scheduler: str, optimizer: str) -> list[Seen]:
    """Four updates without and with accumulation, by directory: rates, losses, weights."""
    answers = []
    for directory, micro in zip(directories, ("auto", 2), strict=True):
        model = make_model()
        options = {"momentum": 0.9} if optimizer == "SGD" else {}
        ready = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1, **options)
        kind, settings = SCHEDULERS[scheduler]
        case = Case(directory, {"train": {"global_batch": 12, "max_steps": 4, "micro_batch": micro}})
        rows, task = MaskedRows(48), MaskedRegression([])
        rates, losses = [], []
        with Trainer(
            model, config_of(case), rows, loss=task, optimizer=ready, scheduler=kind(ready, **settings)
        ) as trainer:
            for info in trainer.steps():
                assert info.logged is not None
                rates.append(info.logged["lr"])
                losses.append(info.logged["loss"])
        answers.append((rates, losses, {name: value.clone() for name, value in model.state_dict().items()}))
    return answers


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("scheduler", ["step", "one-cycle"])
def test_rates_are_those_of_one_process(ranks: RankPool, tmp_path: Path, scheduler: str, optimizer: str) -> None:
    runs: list[Seen] = []
    for world in (1, 2):
        names = [str(tmp_path / f"{world}-{number}") for number in range(2)]
        by_rank = ranks.run(world, train_with, names, scheduler, optimizer)
        for answers in by_rank[1:]:
            assert [seen[0] for seen in answers] == [seen[0] for seen in by_rank[0]]
        runs += by_rank[0]
    kind, settings = SCHEDULERS[scheduler]
    reference = torch.optim.SGD(make_model().parameters(), 0.1, momentum=0.9)
    steps = kind(reference, **settings)
    expected = []
    for _ in range(4):
        expected.append(reference.param_groups[0]["lr"])
        reference.step()
        steps.step()
    for rates, losses, weights in runs:
        assert rates == pytest.approx(expected, rel=1e-12)
        torch.testing.assert_close(losses, runs[0][1], rtol=0, atol=1e-10)
        assert largest_difference(weights, runs[0][2]) < 1e-10


def test_a_factory_makes_the_optimizer_and_the_config_its_schedule(ranks: RankPool, tmp_path: Path) -> None:
    rates = ranks.run(2, train_with_factory, fresh(tmp_path))
    assert rates[0] == rates[1] == pytest.approx([0.1, 0.2 / 3, 0.1 / 3, 0.0])


def train_with_factory(directory: str) -> list[float]:
    schedule = {"name": "linear", "final_fraction": 0.0}
    case = Case(directory, {"train": {"global_batch": 12, "max_steps": 4, "schedule": schedule}})

    def make(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.NAdam(model.parameters(), lr=0.1)

    with Trainer(make_model(), config_of(case), MaskedRows(48), loss=MaskedRegression([]), optimizer=make) as trainer:
        return [info.logged["lr"] for info in trainer.steps() if info.logged is not None]
