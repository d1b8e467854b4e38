"""State that is made before the first update is what torch would make in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from drumline.engine.half_states import HalfStateAdamW
from drumline.parallel.allocate import allocate_state

MAKERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, 0.1),
    "adam": lambda p: torch.optim.Adam(p, 0.1, amsgrad=True),
    "fused": lambda p: torch.optim.AdamW(p, 0.1, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "half": lambda p: HalfStateAdamW(p, half="bf16", fused=False, lr=0.1),
}


def updated(name: str, allocated: bool) -> tuple[torch.optim.Optimizer, list[nn.Parameter]]:
    torch.manual_seed(3)
    parameters = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(5))]
    optimizer = MAKERS[name](parameters)
    if allocated:
        allocate_state(optimizer)
        assert all(optimizer.state[p] for p in parameters)
    for _ in range(3):
        for p in parameters:
            p.grad = torch.randn(p.shape)
        optimizer.step()
    return optimizer, parameters


@pytest.mark.parametrize("name", MAKERS)
def test_updates_are_the_same_to_the_bit(name: str) -> None:
    plain, expected = updated(name, allocated=False)
    made, found = updated(name, allocated=True)
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a, b)
        assert plain.state[a].keys() == made.state[b].keys()
        for key, value in plain.state[a].items():
            other = made.state[b][key]
            assert torch.equal(value, other) and (value.dtype, value.device) == (other.dtype, other.device)


def test_what_is_there_stays_and_what_is_frozen_gets_none() -> None:
    optimizer, parameters = updated("adamw", allocated=False)
    before = {key: value.clone() for key, value in optimizer.state[parameters[0]].items()}
    frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
    optimizer.add_param_group({"params": [frozen]})
    allocate_state(optimizer)
    assert all(torch.equal(before[key], value) for key, value in optimizer.state[parameters[0]].items())
    assert frozen not in optimizer.state


def test_a_dampened_momentum_is_left_to_torch() -> None:
    p = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([p], 0.1, momentum=0.9, dampening=0.5)
    allocate_state(optimizer)
    assert not optimizer.state[p]
