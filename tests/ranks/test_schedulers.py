"""A ready scheduler moves once a completed update, whatever the world size and the accumulation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from drumline import Trainer
from tests.rank_pool import RankError, RankPool
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


@dataclass
class Followed:
    """What one rank saw of a run."""

    rates: list[float] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


class Warnings(logging.Handler):
    """Keeps what drumline warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


STEP = {"name": "torch", "scheduler": "StepLR", "options": {"step_size": 1, "gamma": 0.5}}


def follow(
    directory: str, schedule: Mapping[str, Any], train: Mapping[str, Any], save_at: int, checkpoint: str | None
) -> Followed:
    """Ten updates, five an epoch, evaluated after every second one and at the end."""
    settings = {"global_batch": 8, "max_steps": 10, "lr": 0.1, "schedule": schedule, **train}
    case = Case(directory, {"train": settings, "evaluate": {"every": 2}})
    seen, warnings = Followed(), Warnings()
    logging.getLogger("drumline").addHandler(warnings)
    model = make_model()
    try:
        with Trainer(
            model, config_of(case), MaskedRows(40), loss=MaskedRegression([]), eval_data=MaskedRows(9)
        ) as trainer:
            if checkpoint is not None:
                trainer.load(checkpoint)
            for info in trainer.steps():
                assert info.logged is not None
                seen.rates.append(info.logged["lr"])
                if info.evaluation is not None:
                    seen.evaluations.append(info.evaluation["loss"])
                if info.step == save_at:
                    trainer.save()
    finally:
        logging.getLogger("drumline").removeHandler(warnings)
    seen.weights = {name: value.clone() for name, value in model.state_dict().items()}
    seen.warnings = warnings.messages
    return seen


def expected_rates(make: Callable[[torch.optim.Optimizer], Any], moves: int) -> list[float]:
    """What torch's scheduler gives when it is moved on so many times, the rate before the first included."""
    reference = torch.optim.SGD(make_model().parameters(), 0.1, momentum=0.9)
    scheduler = make(reference)
    found = [reference.param_groups[0]["lr"]]
    for _ in range(moves):
        reference.step()
        scheduler.step()
        found.append(reference.param_groups[0]["lr"])
    return found


@pytest.mark.parametrize("micro", ["auto", 1])
@pytest.mark.parametrize("world", [1, 2])
def test_the_config_names_a_scheduler_and_when_it_moves(
    ranks: RankPool, tmp_path: Path, world: int, micro: int | str
) -> None:
    rates = expected_rates(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), 9)
    expected = {
        "update": rates,
        "epoch": [rates[0]] * 5 + [rates[1]] * 5,
        "evaluation": [rates[step // 2] for step in range(10)],
    }
    for interval, wanted in expected.items():
        schedule = {**STEP, "interval": interval}
        for seen in ranks.run(world, follow, fresh(tmp_path), schedule, {"micro_batch": micro}, 0, None):
            assert seen.rates == pytest.approx(wanted, rel=1e-12), interval
            assert seen.warnings == []


@pytest.mark.parametrize("train", [{}, {"non_finite": "skip"}, {"precision": "fp16"}], ids=["stop", "skip", "fp16"])
def test_plateau_follows_the_agreed_metric(ranks: RankPool, tmp_path: Path, train: dict[str, Any]) -> None:
    options: dict[str, Any] = {"patience": 0, "factor": 0.5, "threshold": 0.2}
    schedule = {"name": "torch", "scheduler": "ReduceLROnPlateau", "options": options, "interval": "evaluation"}
    for world in (1, 2):
        found = ranks.run(world, follow, fresh(tmp_path), schedule, {"lr": 0.3, **train}, 0, None)
        reference = torch.optim.SGD(make_model().parameters(), 0.3)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(reference, **options)
        wanted = []
        for loss in found[0].evaluations:
            wanted += [reference.param_groups[0]["lr"]] * 2
            plateau.step(loss)
        assert len(set(wanted)) > 1
        for seen in found:
            assert seen.evaluations == found[0].evaluations
            assert seen.rates == pytest.approx(wanted, rel=1e-12)


def test_a_metric_that_no_evaluation_has_ends_all_ranks(ranks: RankPool, tmp_path: Path) -> None:
    schedule = {"name": "torch", "scheduler": "ReduceLROnPlateau", "interval": "evaluation", "metric": "acuracy"}
    with pytest.raises(RankError, match=r"an evaluation gives no acuracy[\s\S]*close, count and loss") as caught:
        ranks.run(2, follow, fresh(tmp_path), schedule, {}, 0, None)
    assert {error.type_name for error in caught.value.errors.values()} == {"ConfigError"}
    assert sorted(caught.value.errors) == [0, 1]


def test_a_scheduler_longer_than_the_run_gives_the_head_of_its_sequence(ranks: RankPool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_lr": 0.1, "total_steps": 100}
    schedule = {"name": "torch", "scheduler": "OneCycleLR", "options": options}
    wanted = expected_rates(lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, **options), 9)
    for world in (1, 2):
        for seen in ranks.run(world, follow, fresh(tmp_path), schedule, {"optimizer": {"name": "adamw"}}, 0, None):
            assert seen.rates == pytest.approx(wanted, rel=1e-12)
            (warning,) = seen.warnings
            assert "made for 100 moves (total_steps), and the run has 10 updates" in warning


def test_a_scheduler_shorter_than_the_run_is_refused_before_it(ranks: RankPool, tmp_path: Path) -> None:
    schedule = {"name": "torch", "scheduler": "OneCycleLR", "options": {"max_lr": 0.1, "total_steps": 9}}
    with pytest.raises(RankError, match=r"ends after 9 moves[\s\S]*set its total_steps to 10") as caught:
        ranks.run(2, follow, fresh(tmp_path), schedule, {"optimizer": {"name": "adamw"}}, 0, None)
    assert {error.type_name for error in caught.value.errors.values()} == {"ConfigError"}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("scheduler", "options", "interval"),
    [
        ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3}, "update"),
        ("OneCycleLR", {"max_lr": 0.1, "total_steps": 10}, "update"),
        ("MultiStepLR", {"milestones": [2, 4, 7]}, "update"),
        ("CosineAnnealingWarmRestarts", {"T_0": 3}, "update"),
        ("StepLR", {"step_size": 1}, "epoch"),
        ("ExponentialLR", {"gamma": 0.7}, "evaluation"),
        ("ReduceLROnPlateau", {"patience": 0, "threshold": 0.5, "factor": 0.7}, "evaluation"),
    ],
)
def test_the_rest_of_a_run_has_the_rest_of_the_rates(
    ranks: RankPool, tmp_path: Path, scheduler: str, options: dict[str, Any], interval: str
) -> None:
    schedule = {"name": "torch", "scheduler": scheduler, "options": options, "interval": interval}
    train = {"optimizer": {"name": "sgd", "momentum": 0.8, "weight_decay": 0.0}}
    whole, *_ = ranks.run(2, follow, str(tmp_path / "whole"), schedule, train, 5, None)
    assert len(set(whole.rates)) > 1
    checkpoint = str(tmp_path / "whole" / "checkpoints" / "step_5")
    for world in (1, 2):
        rest, *_ = ranks.run(world, follow, str(tmp_path / f"rest-{world}"), schedule, train, 0, checkpoint)
        assert rest.rates == pytest.approx(whole.rates[5:], rel=0 if world == 2 else 1e-12)
        assert largest_difference(rest.weights, whole.weights) <= (0 if world == 2 else 1e-10)
