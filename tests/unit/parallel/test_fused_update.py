"""What the kernels of a fused optimizer do for an update: divide, and leave everything as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline.parallel.precision import LossScale
from drumline.parallel.update import Update
from tests.unit.parallel.updates import MakeOptimizer, assert_same, constant, new_parameters, snapshot

CPU = torch.device("cpu")

FUSED: dict[str, MakeOptimizer] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, fused=True),
    "sgd with momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.1, fused=True),
}
fused = pytest.mark.parametrize("make", FUSED.values(), ids=FUSED.keys())


def narrowed(dtype: torch.dtype) -> list[nn.Parameter]:
    return [nn.Parameter(p.detach().to(dtype)) for p in new_parameters()]


def set_narrow_gradients(parameters: Sequence[nn.Parameter], seed: int, times: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in parameters:
        p.grad = (torch.randn(p.shape, dtype=torch.float64, generator=generator) * times).to(p.dtype)


class Divided:
    """Notes what the optimizer's kernels are asked to divide by, and what gradients they get."""

    def __init__(self, optimizer: torch.optim.Optimizer, p: nn.Parameter) -> None:
        self.scales: list[float | None] = []
        self.gradients: list[Tensor] = []

        def before(_optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            scale = getattr(optimizer, "grad_scale", None)
            self.scales.append(None if scale is None else float(scale))
            assert p.grad is not None
            self.gradients.append(p.grad.clone())

        optimizer.register_step_pre_hook(before)


@fused
@pytest.mark.parametrize("max_norm", [None, 0.3, 1e9])
def test_kernels_clip_as_torch_does_by_itself(make: MakeOptimizer, max_norm: float | None) -> None:
    ours, theirs = narrowed(torch.float32), narrowed(torch.float32)
    update, optimizer = Update(make(ours), constant(), None), make(theirs)
    seen = Divided(update.optimizer, ours[0])
    for seed in range(4):
        set_narrow_gradients(ours, seed)
        set_narrow_gradients(theirs, seed)
        as_given = ours[0].grad
        assert as_given is not None
        given = as_given.clone()
        outcome = update.apply(max_norm)
        norm = torch.nn.utils.clip_grad_norm_(theirs, max_norm if max_norm is not None else float("inf"))
        optimizer.step()
        torch.testing.assert_close(outcome.norm, norm, rtol=1e-6, atol=0)
        for mine, reference in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, reference, rtol=2e-6, atol=1e-6)
        assert_same(seen.gradients[-1], given)  # no pass over them before the step
        if max_norm is None:
            assert seen.scales[-1] is None
        else:
            assert seen.scales[-1] == pytest.approx(max(1.0, float(norm) / max_norm), rel=1e-5)
    assert not hasattr(update.optimizer, "grad_scale")
    assert not hasattr(update.optimizer, "found_inf")


@fused
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_unscale_exactly(make: MakeOptimizer, dtype: torch.dtype) -> None:
    """A loss scale is a power of two, so that multiplying and dividing by it leaves no trace."""
    scale = LossScale(CPU)
    plain, scaled = narrowed(dtype), narrowed(dtype)
    reference, update = Update(make(plain), constant(), None), Update(make(scaled), constant(True), scale)
    for seed in range(3):
        set_narrow_gradients(plain, seed)
        set_narrow_gradients(scaled, seed, times=float(scale.scale))
        expected, found = reference.apply(0.5), update.apply(0.5)
        assert_same(found.norm, expected.norm)
        assert_same([p.detach() for p in scaled], [p.detach() for p in plain])


@fused
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_kernels_leave_everything_when_the_norm_is_not_finite(make: MakeOptimizer, value: float) -> None:
    parameters = narrowed(torch.float32)
    update = Update(make(parameters), constant(True), LossScale(CPU))
    set_narrow_gradients(parameters, 0)
    update.apply(0.5)
    weights, state = snapshot(update, parameters)
    set_narrow_gradients(parameters, 1)
    assert parameters[0].grad is not None
    parameters[0].grad[0, 0] = value
    assert float(update.apply(0.5).applied) == 0.0
    assert_same([p.detach() for p in parameters], weights)
    assert_same(update.optimizer.state_dict()["state"], state)


def test_float64_beside_float32_is_divided_in_its_own_precision() -> None:
    """Fused kernels read a float32, which would cost half of a float64's digits."""
    first, second = new_parameters()
    narrow = nn.Parameter(second.detach().float())
    update = Update(torch.optim.SGD([first, narrow], 0.1, fused=True), constant(), None)
    set_narrow_gradients([first, narrow], 5)
    assert first.grad is not None and narrow.grad is not None
    gradients = [first.grad.clone(), narrow.grad.clone()]
    before = first.detach().clone()
    norm = float(torch.nn.utils.get_total_norm(gradients))
    update.apply(0.25)
    torch.testing.assert_close(before - first.detach(), 0.1 * gradients[0] * 0.25 / (norm + 1e-6), rtol=1e-12, atol=0)


def test_the_norm_of_half_precision_is_not_rounded_to_it() -> None:
    parameters = [nn.Parameter(torch.zeros(1000, dtype=torch.bfloat16)) for _ in range(3)]
    for p in parameters:
        p.grad = torch.full_like(p, 1.015625)
    outcome = Update(torch.optim.SGD(parameters, 0.1), constant(), None).apply(None)
    assert outcome.norm.dtype is torch.float32
    assert float(outcome.norm) == pytest.approx(1.015625 * 3000**0.5, rel=1e-6)
