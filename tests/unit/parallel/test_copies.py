from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.parallel.nets import Net, X, close, net, same_gradients, wrapped

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "plain": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=False),
    "foreach": lambda p: torch.optim.AdamW(p, 0.1, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, 0.1, fused=True),
    "fused sgd": lambda p: torch.optim.SGD(p, 0.1, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_replicas_follow_an_optimizer(name: str) -> None:
    """A fused one leaves no trace in the parameters' versions."""
    single, parallel = net(), wrapped(net())
    for model in (single, parallel):
        optimizer = OPTIMIZERS[name](model.parameters())
        for step in range(4):
            for part in (X, X + 1)[: 1 + step % 2]:
                model(part[: 9 - step]).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    close(parallel.module.state_dict(), single.state_dict())


def test_replicas_follow_an_update_by_hand_of_the_data() -> None:
    single, parallel = net(), wrapped(net())
    for model in (single, parallel):
        for _ in range(3):
            model(X).square().sum().backward()
            for p in model.parameters():
                if p.grad is not None:
                    p.data.add_(p.grad, alpha=-0.01)
                    p.grad = None
    close(parallel.module.state_dict(), single.state_dict())


def swap_layer(model: Net) -> None:
    model.first = copy.deepcopy(model.again)


def load_other(model: Net) -> None:
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


def assign_other(model: Net) -> None:
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()}, assign=True)


def change_buffer(model: Net) -> None:
    model.shift += 5


def replace_buffer(model: Net) -> None:
    model.shift = model.shift + 5


def thaw(model: Net) -> None:
    model.scale.requires_grad_(True)


def freeze(model: Net) -> None:
    model.first.requires_grad_(False)


def round_off(model: Net) -> None:
    model.float().double()


CHANGES = [swap_layer, load_other, assign_other, change_buffer, replace_buffer, thaw, freeze, round_off]


@pytest.mark.parametrize("change", CHANGES)
def test_replicas_follow_all_other_changes(change: Callable[[Net], None]) -> None:
    single, module = net(), net()
    parallel = wrapped(module)
    with torch.no_grad():
        parallel(X)
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1).step()  # from now on only steps and versions count
    parallel(X)
    for model in (single, module):
        change(model)
    with torch.inference_mode():
        close(parallel(X), single(X))
    parallel(X).square().sum().backward()
    single(X).square().sum().backward()
    same_gradients(parallel.module, single)


def test_a_change_without_a_trace_is_taken_over_when_asked() -> None:
    module = net()
    parallel = wrapped(module)
    with torch.no_grad():
        before = parallel(X)
        module.again.bias.data += 1
        parallel.refresh()
        close(parallel(X), before + 1)


def test_an_update_between_forward_and_backward_is_an_error_as_on_one_device() -> None:
    module = net()
    parallel = wrapped(module)
    loss = parallel(X).square().sum()
    with torch.no_grad():
        module.first.weight += 1
        parallel(X)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
