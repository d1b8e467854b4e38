from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

from drumline.errors import ConfigError
from drumline.parallel.compute import Compute
from drumline.parallel.single import Single
from drumline.parallel.strategy import MAIN, Learner, MicroBatch, Rates, Scale
from drumline.tasks.function import FunctionTask

CPU = torch.device("cpu")
TASK = FunctionTask(lambda model, x: model(x).square().mean())
X = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]])


def single_of(model: nn.Module, skippable: bool = False) -> Single:
    strategy = Single(CPU, Compute("fp32"))
    rates = Rates(lambda step: 1.0, 10, None, "update", skippable)
    strategy.setup(model, {MAIN: Learner(TASK, lambda model: torch.optim.SGD(model.parameters(), 0.1), rates)})
    return strategy


def window(strategy: Single, *parts: Tensor) -> dict[str, tuple[float, float]]:
    count = sum(len(part) for part in parts)
    sums = strategy.window(
        MAIN, [MicroBatch(part, len(part), len(part)) for part in parts], Scale(1 / count, 1 / count)
    )
    return {name: (float(value), float(weight)) for name, (value, weight) in sums.items()}


def test_micro_batches_accumulate_to_the_whole() -> None:
    whole, parts = nn.Linear(2, 1), nn.Linear(2, 1)
    parts.load_state_dict(whole.state_dict())
    first, second = single_of(whole), single_of(parts)
    sums = window(first, X), window(second, X[:1], X[1:])
    assert sums[0]["total"] == pytest.approx(sums[1]["total"])
    assert sums[0]["total"][1] == 3.0
    outcomes = first.step(MAIN, None), second.step(MAIN, None)
    torch.testing.assert_close(outcomes[0].norm, outcomes[1].norm)
    torch.testing.assert_close(whole.state_dict(), parts.state_dict())


def test_a_discarded_window_leaves_nothing() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    strategy = single_of(model)
    window(strategy, X)
    strategy.step(MAIN, None)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    window(strategy, X)
    assert not torch.equal(model.state_dict()["0.running_mean"], before["0.running_mean"])
    strategy.discard(MAIN)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_a_skipped_window_leaves_nothing_and_an_applied_one_its_statistics() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    strategy = single_of(model, skippable=True)
    window(strategy, X)
    strategy.step(MAIN, 1.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert int(before["0.num_batches_tracked"]) == 1
    window(strategy, X * float("nan"))
    assert float(strategy.step(MAIN, 1.0).applied) == 0.0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_evaluation_is_of_the_bare_model_without_a_graph() -> None:
    model = nn.Linear(2, 1)
    seen = []

    def function(given: nn.Module, batch: Tensor) -> Tensor:
        seen.append(given)
        outputs: Tensor = given(batch)
        return outputs

    outputs = single_of(model).run(MicroBatch(X, 4, 4), function)
    torch.testing.assert_close(outputs, model(X).detach())
    assert not outputs.requires_grad
    assert seen == [model]


def test_a_frozen_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="requires a gradient"):
        single_of(nn.Linear(2, 1).requires_grad_(False))


def test_a_parameter_without_gradient_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(2, 1)
            self.spare = nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.used(x)
            return outputs

    strategy = single_of(Spare())
    with caplog.at_level(logging.WARNING, "drumline"):
        for _ in range(2):
            window(strategy, X)
            strategy.heed(MAIN, [strategy.notes(MAIN)])
            strategy.step(MAIN, None)
    assert [record.getMessage().count("spare.weight") for record in caplog.records] == [1]
    assert "used.weight" not in caplog.text


def test_state_and_load_round_trip() -> None:
    first, second = nn.Linear(2, 1), nn.Linear(2, 1)
    saving, loading = single_of(first), single_of(second)
    window(saving, X)
    saving.step(MAIN, None)
    loading.load(saving.state())
    torch.testing.assert_close(second.state_dict(), first.state_dict(), rtol=0, atol=0)
    assert saving.state()["learners"][MAIN]["completed"] == loading.state()["learners"][MAIN]["completed"] == 1
