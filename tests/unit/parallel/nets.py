"""A module with all that a replica has to follow, and how its gradients are compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from drumline.parallel.optimized import OptimizedDataParallel

X = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """Tied weights, a frozen parameter, one that is never used, and a buffer."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.again = nn.Linear(3, 3)
        self.again.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(3), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, x: Tensor, *, times: float = 1.0) -> Tensor:
        assert len([p for p in self.parameters() if p.dtype == x.dtype]) >= 5  # replicas have theirs too
        hidden: Tensor = self.again(torch.tanh(self.first(x)))
        return hidden * self.scale * times + self.shift


def net() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Net().double()


def wrapped(module: nn.Module, count: int = 4, **options: Any) -> OptimizedDataParallel:
    return OptimizedDataParallel(module, ["cpu"] * count, **options)


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}


def close(first: Any, second: Any, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=tolerance)


def same_gradients(parallel: nn.Module, single: nn.Module) -> None:
    found, expected = gradients(parallel), gradients(single)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (gradient is None) == (found[name] is None), name
        if gradient is not None:
            close(found[name], gradient)
