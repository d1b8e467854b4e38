"""Parameters, gradients and rates that tests of an update share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from drumline.parallel.strategy import Rates
from drumline.parallel.update import Update

MakeOptimizer = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]


def new_parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(4, 3), (3,)]
    return [nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=generator)) for shape in shapes]


def set_gradients(parameters: Sequence[nn.Parameter], seed: int, times: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in parameters:
        p.grad = torch.randn(p.shape, dtype=torch.float64, generator=generator) * times


def constant(skippable: bool = False) -> Rates:
    return Rates(lambda step: 1.0, 10, None, "update", skippable)


def snapshot(update: Update, parameters: Sequence[nn.Parameter]) -> tuple[list[Tensor], dict[str, Any]]:
    return [p.detach().clone() for p in parameters], copy.deepcopy(update.optimizer.state_dict()["state"])


def assert_same(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0)
