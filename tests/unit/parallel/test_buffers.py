from __future__ import annotations

import torch
from torch import Tensor, nn

from drumline.parallel.buffers import Buffers


def moved() -> tuple[nn.Module, Buffers, dict[str, Tensor]]:
    """A model after a kept window that went wrong, and its state before that."""
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    model(torch.randn(4, 2, generator=torch.Generator().manual_seed(0)))
    buffers = Buffers(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    buffers.keep()
    model(torch.full((4, 2), float("nan")))
    assert before["0.running_mean"].isfinite().all()
    assert model.state_dict()["0.running_mean"].isnan().all()
    return model, buffers, before


def same(model: nn.Module, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_take_back() -> None:
    model, buffers, before = moved()
    buffers.take_back()
    assert same(model, before)


def test_take_back_unless_applied() -> None:
    model, buffers, before = moved()
    buffers.take_back_unless(torch.tensor(1.0))
    assert not same(model, before)
    buffers.take_back_unless(torch.tensor(0.0))
    assert same(model, before)


def test_what_no_checkpoint_holds_and_parameters_are_left_alone() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("cache", torch.zeros(2), persistent=False)
    buffers = Buffers(model)
    buffers.keep()
    with torch.no_grad():
        model.weight.fill_(3.0)
    model.get_buffer("cache").fill_(3.0)
    buffers.take_back()
    buffers.take_back_unless(torch.tensor(0.0))
    assert (model.weight == 3).all()
    assert (model.get_buffer("cache") == 3).all()
