"""Forward, backward and optimizer apart, by marks around a strategy that knows nothing of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from drumline.bench.phases import Phases, TimedStrategy, phases_of
from drumline.parallel.compute import Compute
from drumline.parallel.single import Single
from drumline.parallel.strategy import MAIN, Batch, Learner, Loss, MicroBatch, Rates, Scale

PAUSE_S = 0.02


class Slow(torch.autograd.Function):
    """The identity, which takes a while in both directions."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        """One pause."""
        time.sleep(PAUSE_S)
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        """Two pauses."""
        time.sleep(2 * PAUSE_S)
        return gradient


class SlowTask:
    """The sum of what a linear layer gives, slowly."""

    def count(self, batch: Batch) -> int:
        return len(batch)

    def check(self, batch: Batch) -> None:
        pass

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        found: Tensor = Slow.apply(model(batch))  # type: ignore[no-untyped-call]
        return found

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        return Loss(outputs.sum())


def timed_single() -> TimedStrategy:
    """Single on a small model, with marks."""
    single = Single(torch.device("cpu"), Compute("fp32"))
    rates = Rates(None, None, None, "update", skippable=False)
    learner = Learner(SlowTask(), lambda model: torch.optim.SGD(model.parameters(), lr=0.1), rates)
    single.setup(nn.Linear(2, 1), {MAIN: learner})
    return TimedStrategy(single, torch.device("cpu"))


def run(strategy: TimedStrategy, micro_batches: int) -> None:
    """One update."""
    batch = MicroBatch(torch.ones(1, 2), 1, 1)
    strategy.window(MAIN, [batch] * micro_batches, Scale(1.0, 1.0))
    strategy.step(MAIN, None)


def test_phases_are_told_apart_over_micro_batches() -> None:
    strategy = timed_single()
    run(strategy, 1)
    strategy.watching = True
    run(strategy, 2)
    run(strategy, 1)
    strategy.watching = False
    run(strategy, 1)
    two, one = strategy.take()
    assert 2 * PAUSE_S <= two.forward_s < two.backward_s and two.backward_s >= 4 * PAUSE_S
    assert PAUSE_S <= one.forward_s < two.forward_s
    assert 0 < one.optimizer_s < PAUSE_S
    assert strategy.take() == []


def test_torch_is_as_it_was() -> None:
    before = torch.Tensor.backward
    strategy = timed_single()
    strategy.watching = True
    run(strategy, 1)
    assert torch.Tensor.backward is before
    with pytest.raises(KeyError):
        strategy.window("unknown", [], Scale(1.0, 1.0))
    assert torch.Tensor.backward is before


def test_everything_else_is_the_strategys_own(tmp_path: Path) -> None:
    strategy = timed_single()
    assert strategy.forwards_together is False
    assert strategy.state()["learners"].keys() == {MAIN}


def test_what_lies_between_the_passes_and_the_step_counts_for_none() -> None:
    marks = [("window", 0.0), ("backward", 1.0), ("forward", 3.0), ("backward", 4.0), ("forward", 6.0), ("step", 9.0)]
    assert phases_of([*marks, ("end", 9.5)]) == Phases(forward_s=2.0, backward_s=4.0, optimizer_s=0.5)
