"""The optimizers whose step has no Python loop over parameters: torch's numbers to the bit."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

from drumline.config.train import OptimizerConfig, TrainConfig
from drumline.engine.fused import FusedAdamW, FusedSGD
from drumline.engine.optimizer import make_optimizer
from drumline.parallel.strategy import Rates
from drumline.parallel.update import Update

OPTIONS = [
    (FusedAdamW, torch.optim.AdamW, {"betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}),
    (FusedSGD, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    (FusedSGD, torch.optim.SGD, {}),
]
SHAPES = [(3, 4), (4,), (2, 2, 2)]


def weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def pair(ours: Any, torchs: Any, options: dict[str, Any], lr: Any = 0.01) -> tuple[Any, Any]:
    """Both over equal parameters, in two groups."""
    made = []
    for kind, more in ((ours, {}), (torchs, {"fused": True})):
        first, *rest = weights()
        made.append(kind([{"params": rest}, {"params": [first], "weight_decay": 0.3}], lr=lr, **options, **more))
    return made[0], made[1]


def parameters_of(optimizer: Any) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def give(optimizer: Any, seed: int, *, without: int | None = None) -> None:
    generator = torch.Generator().manual_seed(seed)
    for i, p in enumerate(parameters_of(optimizer)):
        gradient = torch.randn(p.shape, generator=generator)
        p.grad = None if i == without else gradient


def assert_equal(first: Any, second: Any) -> None:
    for a, b in zip(parameters_of(first), parameters_of(second), strict=True):
        assert torch.equal(a, b)
        assert first.state[a].keys() == second.state[b].keys()
        for name, value in first.state[a].items():
            assert value is second.state[b][name] or torch.equal(value, second.state[b][name]), name


@pytest.mark.parametrize(("ours", "torchs", "options"), OPTIONS)
@pytest.mark.parametrize("lr", [0.01, torch.tensor(0.01)], ids=["number", "tensor"])
def test_updates_are_equal_to_the_bit(ours: Any, torchs: Any, options: dict[str, Any], lr: Any) -> None:
    if torchs is torch.optim.SGD:
        lr = float(lr)  # whose kernel for the CPU takes no tensor
    first, second = pair(ours, torchs, options, lr)
    for step in range(8):
        for optimizer in (first, second):
            give(optimizer, step, without=1 if step == 4 else None)
            if step in (2, 6):
                optimizer.found_inf, optimizer.grad_scale = torch.tensor(float(step == 6)), torch.tensor(8.0)
            optimizer.step()
            if step in (2, 6):
                del optimizer.found_inf, optimizer.grad_scale
        assert_equal(first, second)
    assert first._kept is not None  # or torch's own step was compared with itself


@pytest.mark.parametrize(("ours", "torchs", "options"), OPTIONS)
def test_state_goes_from_either_to_the_other(ours: Any, torchs: Any, options: dict[str, Any]) -> None:
    first, second = pair(ours, torchs, options)
    for step in range(3):
        give(first, step)
        first.step()
    with torch.no_grad():
        for p, q in zip(parameters_of(first), parameters_of(second), strict=True):
            q.copy_(p)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for step in range(3, 5):
        for optimizer in (first, second):
            give(optimizer, step)
            optimizer.step()
    assert_equal(first, second)
    first.load_state_dict(copy.deepcopy(second.state_dict()))  # over the lists that it has kept
    for optimizer in (first, second):
        give(optimizer, 5)
        optimizer.step()
    assert_equal(first, second)
    assert first._kept is not None


def test_replaced_parameters_are_the_ones_that_move() -> None:
    optimizer, _ = pair(FusedAdamW, torch.optim.AdamW, {})
    for step in range(2):
        give(optimizer, step)
        optimizer.step()
    group = optimizer.param_groups[0]
    old = group["params"]
    group["params"] = [nn.Parameter(p.detach().clone()) for p in old]
    for p, q in zip(old, group["params"], strict=True):
        optimizer.state[q] = optimizer.state.pop(p)
    before = [p.detach().clone() for p in (*old, *group["params"])]
    give(optimizer, 2)
    optimizer.step()
    unmoved = [torch.equal(p, b) for p, b in zip((*old, *group["params"]), before, strict=True)]
    assert unmoved == [True, True, False, False]


def lines_run(function: Callable[[], Any]) -> int:
    """Python lines that a call executes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def update_over(num_parameters: int, name: str) -> Update:
    model = nn.ParameterList([nn.Parameter(torch.ones(2, 2)) for _ in range(num_parameters)])
    config = TrainConfig(optimizer=OptimizerConfig.model_validate({"name": name, "momentum": 0.9}))
    rates = Rates(lambda step: 1.0, 100, None, "update", skippable=True)
    update = Update(make_optimizer(model, config), rates, None)
    for step in range(2):
        give(update.optimizer, step)
        update.apply(1.0)
    give(update.optimizer, 2)
    return update


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_an_update_runs_as_many_lines_for_many_parameters_as_for_few(name: str) -> None:
    few, many = (lines_run(partial(update_over(number, name).apply, 1.0)) for number in (5, 500))
    assert few == many > 10
