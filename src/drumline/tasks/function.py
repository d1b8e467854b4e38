"""A user's one function as a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from drumline.errors import ConfigError
from drumline.parallel.strategy import Batch, Loss

LossFunction = Callable[[nn.Module, Batch], Any]
CountFunction = Callable[[Batch], "int | Tensor"]


def count_samples(batch: Batch) -> int:
    """Samples of a batch: the first size of the first tensor in it that has one; ConfigError where there is none."""
    samples = _first_size(batch)
    if samples is None:
        raise ConfigError(
            f"how many samples a batch of type {type(batch).__name__} has cannot be told: it holds no tensor",
            "give count= with a function from a batch to the number that the loss is a mean of",
        )
    return samples


def _first_size(batch: Batch) -> int | None:
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else None
    parts: Sequence[Any] = ()
    if isinstance(batch, Mapping):
        parts = list(batch.values())
    elif isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        parts = batch
    return next((size for size in map(_first_size, parts) if size is not None), None)


class FunctionTask:
    """`loss(model, batch)` returns a mean as scalar tensor, an output with such a `.loss`, or a `Loss`.

    A mean is multiplied by count(batch), the samples unless `count` is given; a `Loss` is taken as it is, its total
    summed over those units. `count` is also called on batches on the device: returning a tensor there instead of a
    number spares waiting for it. `samples` tells the samples of a batch that holds no tensor.
    """

    def __init__(
        self, loss: LossFunction, count: CountFunction | None = None, samples: CountFunction = count_samples
    ) -> None:
        self._loss = loss
        self._count = samples if count is None else count
        self.needs_count = count is not None
        """Samples are never 0; a user's count may be, and then the mean is 0/0 and must not be run."""
        self.unit = "samples" if count is None else "units"

    def count(self, batch: Batch) -> int:
        """Units that the loss is a mean of; ConfigError where `count` gives no whole number."""
        number = self._count(batch)
        whole = isinstance(number, Tensor) and number.numel() == 1 and not number.is_floating_point()
        if not whole and not isinstance(number, int):
            raise ConfigError(
                f"count= returned {_describe(number)}, and a whole number is needed",
                "return the number of tokens or samples that the loss is a mean of",
            )
        return int(number)

    def check(self, batch: Batch) -> None:
        """Nothing is known about the function's batches."""

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        """What the function returns."""
        return self._loss(model, batch)

    def loss(self, outputs: Any, batch: Batch) -> Loss:
        """The function's result as a sum; ConfigError where it is none of the three forms."""
        if isinstance(outputs, Loss):
            _check(outputs.total, outputs)
            return outputs
        mean = outputs if isinstance(outputs, Tensor) else getattr(outputs, "loss", None)
        return Loss(_check(mean, outputs) * self._count(batch))


def _check(value: Any, outputs: Any) -> Tensor:
    """The value if it is a scalar that a gradient can come from (where one is wanted)."""
    if not isinstance(value, Tensor):
        raise ConfigError(
            f"loss= returned {_describe(outputs)}",
            "return a scalar tensor, a model output whose .loss is one (give the model labels), or a drumline Loss",
        )
    if value.dim() != 0:
        raise ConfigError(f"loss= gave a tensor of shape {list(value.shape)}, not one number", "reduce it with .mean()")
    if torch.is_grad_enabled() and not value.requires_grad:
        raise ConfigError(
            "loss= gave a number that no gradient leads back from",
            "compute it from the model's output, without .item(), .detach() or torch.no_grad()",
        )
    return value


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {list(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"
