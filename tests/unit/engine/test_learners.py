from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline.engine.learners import by_learner, choose_tasks, loader_task
from drumline.errors import ConfigError, DataError, ValueRangeError
from drumline.parallel.strategy import MAIN, Batch, Loss
from tests.unit.engine.training import losses, make_model, rows, squared_error, trainer_of


def by_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


def first_layer(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model[0].parameters(), 0.1)


def last_layer(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model[3].parameters(), 0.1)


BOTH = {"first": squared_error, "last": squared_error}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"loss": {}}, "a mapping of 0"),
        ({"loss": {"only": squared_error}}, "a mapping of 1"),
        ({"loss": {"main": squared_error, "last": squared_error}}, "'main' cannot be the name"),
        ({"loss": {"a/b": squared_error, "last": squared_error}}, "'a/b' cannot be the name"),
        ({"loss": {1: squared_error, 2: squared_error}}, "1 cannot be the name"),
        ({"loss": BOTH}, "nothing says which parameters first trains"),
        ({"loss": BOTH, "optimizer": {"first": by_sgd}}, "nothing says which parameters last trains"),
        ({"loss": BOTH, "optimizer": by_sgd}, "2 losses and optimizer= is one function"),
        ({"loss": BOTH, "optimizer": {"first": by_sgd, "list": by_sgd}}, "names 'list', which loss= does not"),
        ({"optimizer": {"first": by_sgd}}, "optimizer= is a mapping and loss= is not"),
        ({"scheduler": {"first": by_sgd}}, "scheduler= is a mapping and loss= is not"),
        ({"loss": {"first": squared_error, "last": nn.MSELoss()}}, "MSELoss"),
    ],
)
def test_what_does_not_go_together_is_refused_at_once(tmp_path: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        trainer_of(tmp_path / "run", **options)


def test_an_option_for_some_is_none_for_the_others() -> None:
    assert by_learner("scheduler", {"last": 1}, ["first", "last"]) == {"first": None, "last": 1}
    assert by_learner("scheduler", 1, [MAIN]) == {MAIN: 1}
    assert by_learner("scheduler", None, ["first", "last"]) == {"first": None, "last": None}


def test_each_follows_its_own_loss_and_scheduler(tmp_path: Path) -> None:
    """The layers are trained in turns; StepLR moves the last one's rate only."""
    model, expected = make_model(), make_model()
    options: dict[str, Any] = {
        "loss": {"first": squared_error, "last": lambda model, batch: 2 * squared_error(model, batch)},
        "optimizer": {"first": first_layer(model), "last": last_layer(model)},
    }
    options["scheduler"] = {"last": torch.optim.lr_scheduler.StepLR(options["optimizer"]["last"], 1, 0.5)}
    train = {"shuffle": False, "micro_batch": 2}
    with trainer_of(tmp_path / "run", model=model, train=train, **options) as trainer:
        infos = list(trainer.steps())
    optimizers = [first_layer(expected), last_layer(expected)]
    found = []
    for update, start in enumerate((0, 4, 8)):
        batch = rows()[start : start + 4]
        optimizers[1].param_groups[0]["lr"] = 0.1 * 0.5**update
        means = []
        for factor, optimizer in enumerate(optimizers, 1):
            loss = factor * squared_error(expected, batch)
            expected.zero_grad()
            loss.backward()
            optimizer.step()
            means.append(loss.item())
        found.append(sum(means))
    torch.testing.assert_close(losses(infos), found, rtol=0, atol=1e-12)
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=1e-12)
    rates = [(info.logged["first/lr"], info.logged["last/lr"]) for info in infos if info.logged is not None]
    assert rates == [(0.1, 0.1), (0.1, 0.05), (0.1, 0.025)]


def test_what_no_optimizer_has_stays_and_can_be_trained_afterwards(tmp_path: Path) -> None:
    model = make_model(norm=True)
    before = model[1].weight.clone()  # type: ignore[index]
    optimizers = {"first": first_layer, "last": lambda model: torch.optim.SGD(model[4].parameters(), 0.1)}
    with trainer_of(tmp_path / "run", rows(8), model=model, loss=BOTH, optimizer=optimizers) as trainer:
        trainer.fit()
    assert torch.equal(model[1].weight, before)  # type: ignore[index]
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


class Positive:
    """Counts rows above a bound, and refuses those above another."""

    needs_count = False

    def __init__(self, bound: float) -> None:
        self._bound = bound

    def count(self, batch: Batch) -> int:
        return int((batch > self._bound).sum())

    def check(self, batch: Batch) -> None:
        if (batch > 10 * self._bound).any():
            raise ValueRangeError(f"above {10 * self._bound:g}", "stay below")

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        raise AssertionError("no loader runs the model")

    def loss(self, outputs: Any, batch: Batch) -> Loss:
        raise AssertionError("no loader runs the model")


def test_a_loader_counts_by_the_first_and_checks_by_each() -> None:
    tasks = choose_tasks(nn.Linear(1, 1), {"first": Positive(1.0), "second": Positive(0.5)}, None)
    task = loader_task(tasks)
    batch = torch.tensor([0.7, 2.0, 3.0])
    assert task.count(batch) == 2
    task.check(batch)
    with pytest.raises(ValueRangeError, match="above 5"):
        task.check(batch * 2)
    assert loader_task({MAIN: tasks["second"]}) is tasks["second"]


def test_a_checkpoint_of_other_learners_is_refused(tmp_path: Path) -> None:
    optimizers = {"first": first_layer, "last": last_layer}
    with trainer_of(tmp_path / "first", loss=BOTH, optimizer=optimizers) as trainer:
        trainer.fit()
        path = trainer.save()
    with (
        trainer_of(tmp_path / "second") as trainer,
        pytest.raises(DataError, match="it is of first, last, this run of main"),
    ):
        trainer.load(path)
