"""An optimizer that was made before the model came to where it trains, and parameters that have been replaced since."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.optim import Optimizer

from drumline.errors import ConfigError

Replaced = Mapping[nn.Parameter, nn.Parameter]
"""What stands in the model now, by what stood there when it was handed in."""


class ReadyOptimizer:
    """How a strategy gets an optimizer that a user hands in ready: it is that one, if it trains the model."""

    def __init__(self, given: Optimizer) -> None:
        self.given = given

    def __call__(self, model: nn.Module) -> Optimizer:
        """The optimizer itself. Raises ConfigError where it holds none of the model's parameters."""
        own = {id(p) for p in model.parameters()}
        if not any(id(p) in own for group in self.given.param_groups for p in group["params"]):
            raise ConfigError(
                "the optimizer holds none of the model's parameters, so nothing would be trained",
                "make it from the parameters of the model that is handed in, after the last change to that model",
            )
        return self.given


def rebind(optimizer: Optimizer, replaced: Replaced) -> None:
    """Let the optimizer train what stands in the model now; with what it was made from it would train nothing.

    The same object with the same groups and options, so that a scheduler on it goes on. What it has kept of a
    parameter moves along.
    """
    for group in optimizer.param_groups:
        group["params"] = [replaced.get(p, p) for p in group["params"]]
    for old, new in replaced.items():
        if old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)
