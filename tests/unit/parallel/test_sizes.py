"""What torch.compile makes of batches of several sizes, as training brings them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline.parallel.compile import uncompiled
from drumline.parallel.compute import Compute
from drumline.parallel.single import Single
from drumline.parallel.strategy import MAIN, Learner, MicroBatch, Rates, Scale
from drumline.tasks.function import FunctionTask

Shape = tuple[int | None, ...]
"""None: any size."""


class Code:
    """A backend that runs graphs as they are, and keeps for what shape each was made, and whenever it ran."""

    def __init__(self) -> None:
        self.made: list[Shape] = []
        self.ran: list[Shape] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        given = [node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"]
        (batch,) = (x for x in given if isinstance(x, Tensor) and not isinstance(x, nn.Parameter))
        shape = tuple(size if isinstance(size, int) else None for size in batch.shape)
        self.made.append(shape)

        def run(*given: Any) -> Any:
            self.ran.append(shape)
            return graph.forward(*given)

        return run


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Iterator[Code]:
    code = Code()
    monkeypatch.setattr(Compute, "options", lambda self: {"backend": code})
    torch._dynamo.reset()
    yield code
    torch._dynamo.reset()


def strategy() -> Single:
    single = Single(torch.device("cpu"), Compute("fp32", "whole"))
    task = FunctionTask(lambda model, x: model(x).square().mean())
    rates = Rates(lambda step: 1.0, 10, None, "update", False)
    learner = Learner(task, lambda model: torch.optim.SGD(model.parameters(), 0.1), rates)
    single.setup(Scaled(), {MAIN: learner})
    return single


def batch(rows: int, width: int) -> MicroBatch:
    return MicroBatch(torch.ones(rows, width), rows, rows)


def train(single: Single, *shapes: tuple[int, int]) -> None:
    for rows, width in shapes:
        single.window(MAIN, [batch(rows, width)], Scale(1 / rows, 1 / rows))
        single.step(MAIN, None)


def test_after_a_short_batch_full_ones_run_their_own_code(code: Code) -> None:
    epoch = [(8, 4), (8, 4), (3, 4)]
    train(strategy(), *epoch, *epoch, *epoch)
    assert code.made == [(8, 4), (3, 4)]
    assert code.ran == 3 * epoch


def test_a_run_that_begins_with_the_short_one_too(code: Code) -> None:
    train(strategy(), (3, 4), (8, 4), (8, 4), (3, 4), (8, 4))
    assert code.made == [(3, 4), (8, 4)]
    assert code.ran == [(3, 4), (8, 4), (8, 4), (3, 4), (8, 4)]


def test_many_numbers_of_samples_get_code_for_any(code: Code) -> None:
    train(strategy(), (8, 4), (3, 4), (5, 4), (6, 4), (7, 4))
    assert code.made == [(8, 4), (3, 4), (None, 4)]


def test_texts_of_many_lengths_get_code_for_any_length(code: Code) -> None:
    train(strategy(), (8, 4), (8, 6), (8, 9), (8, 5))
    assert code.made == [(8, 4), (8, None)]


def test_evaluation_has_sizes_of_its_own(code: Code) -> None:
    single = strategy()
    for _ in range(2):
        train(single, (8, 4), (3, 4))
        for rows in (16, 16, 5):
            single.forward(MAIN, batch(rows, 4))
    assert code.made == [(8, 4), (3, 4), (16, 4), (5, 4)]
    assert code.ran == 2 * [(8, 4), (3, 4), (16, 4), (16, 4), (5, 4)]


def test_what_is_tried_does_not_count(code: Code) -> None:
    single = strategy()
    with uncompiled():
        for rows in (2, 4, 8, 16):
            single.forward(MAIN, batch(rows, 4))
            single.trial([batch(rows, 4)])
    assert code.made == []
    single.trial([batch(6, 4)])
    train(single, (8, 4), (3, 4), (8, 4))
    assert code.ran == [(6, 4), (8, 4), (3, 4), (8, 4)]
