"""With compiled models: where torch cuts the graph, so that buckets are reduced beside the backward pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor, fx, nn

from drumline.config.compute import Compile
from drumline.config.parallel import DdpParallel
from drumline.launcher.world import World
from drumline.parallel.compute import Compute
from drumline.parallel.ddp import Ddp
from drumline.parallel.groups import Groups
from drumline.parallel.side_channel import Alone
from drumline.parallel.strategy import MAIN, Learner, MicroBatch, Rates, Scale
from drumline.tasks.function import FunctionTask
from tests.rank_pool import RankPool

DEPTH, WIDTH = 4, 640
"""A layer has 1.6 MiB of parameters, so that each fills a bucket of 1 MiB."""


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


def graphs_compiled(compile: Compile, options: dict[str, Any]) -> tuple[int, int, float]:
    """How many graphs torch's compiler is handed in two windows, and in an evaluation after them, and the loss then."""
    graphs: list[fx.GraphModule] = []

    def backend(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    assert dist.group.WORLD is not None
    groups = Groups(World(), torch.device("cpu"), Alone(), dist.group.WORLD, owns_default=False)
    torch.manual_seed(3)
    model = nn.Sequential(*(Layer() for _ in range(DEPTH)))
    strategy = Ddp(groups, DdpParallel(**options), Compute("fp32", compile))
    task = FunctionTask(lambda model, x: model(x).square().mean())
    rates = Rates(lambda step: 1.0, 10, None, "update", False)
    batch = MicroBatch(torch.ones(2, WIDTH), 2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's compiler warns of what it does itself
        strategy.setup(model, {MAIN: Learner(task, lambda model: torch.optim.SGD(model.parameters(), 0.1), rates)})
        objective = strategy._parts[MAIN].objective
        compiled: list[nn.Module] = [objective] if compile == "whole" else list(model)
        for module in compiled if compile != "none" else []:
            module.compile(backend=backend)
        for _ in range(2):
            strategy.window(MAIN, [batch], Scale(1 / 2, 1 / 2))
            strategy.step(MAIN, None)
        trained = len(graphs)
        loss = float(strategy.forward(MAIN, batch).total)
    strategy.close()
    torch._dynamo.reset()
    return trained, len(graphs) - trained, loss


CASES: list[tuple[Compile, dict[str, Any], int]] = [
    ("whole", {"bucket_mb": 1, "cut_graphs": True}, DEPTH),
    ("whole", {"bucket_mb": 1}, 1),
    ("whole", {"bucket_mb": 0.5, "cut_graphs": True}, 1),
    ("blocks", {"bucket_mb": 1}, 2),  # the first block's input wants no gradient
]


@pytest.mark.parametrize(("compile", "options", "expected"), CASES)
def test_where_the_graph_is_cut(ranks: RankPool, compile: Compile, options: dict[str, Any], expected: int) -> None:
    ((trained, evaluated, loss),) = ranks.run_grouped(1, graphs_compiled, compile, options)
    assert trained == expected
    assert evaluated == 1  # the bare objective, or one block for all
    ((_, _, plain),) = ranks.run_grouped(1, graphs_compiled, "none", {})
    assert loss == pytest.approx(plain, rel=1e-6)
