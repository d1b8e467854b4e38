"""One or several numbers a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline.errors import ConfigError
from drumline.parallel.strategy import Batch, Loss
from drumline.tasks.batches import call_model, has_labels, labels_of, scores_of
from drumline.tasks.ranges import check_numbers

if TYPE_CHECKING:
    from torchmetrics import Metric

Error = Literal["squared", "absolute", "huber"]
_ERRORS: dict[str, Callable[..., Tensor]] = {"squared": F.mse_loss, "absolute": F.l1_loss, "huber": F.huber_loss}


class Regression:
    """The error, its mean over targets, summed over rows; huber is squared up to 1 and absolute beyond.

    Labels are numbers, [B] or [B, num_targets]; the model gives as many, in either shape.
    """

    unit = "samples"
    needs_count = False
    """The total is a sum."""

    def __init__(self, error: Error = "squared", num_targets: int = 1) -> None:
        if error not in _ERRORS:
            raise ConfigError(f"there is no error called {error!r}", f"take one of {', '.join(_ERRORS)}")
        self._error = error
        self._num_targets = num_targets

    def count(self, batch: Batch) -> int:
        """Rows."""
        return labels_of(batch).shape[0]

    def check(self, batch: Batch) -> None:
        """Raise ValueRangeError for labels that are not finite, or not num_targets a row."""
        if has_labels(batch):
            check_numbers(labels_of(batch), self._num_targets)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """Numbers [B, num_targets]."""
        # Shaped alike at once: [B, 1] against [B] would be compared pair by pair, and learn the mean.
        numbers = scores_of(call_model(model, batch))
        if numbers.dim() not in (1, 2) or numbers.shape[1:].numel() != self._num_targets:
            raise ConfigError(
                f"the model gave numbers of shape {list(numbers.shape)}, and {self._num_targets} a row are needed",
                "make the model's last layer as wide as there are targets",
            )
        return numbers.reshape(-1, self._num_targets)

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        """The sum over rows."""
        each = _ERRORS[self._error](outputs, self._targets(outputs, batch), reduction="none")
        return Loss(each.mean(-1).sum())

    def metrics(self) -> dict[str, Metric]:
        """Mean absolute and root mean squared error over all numbers; R², the mean over targets."""
        from torchmetrics.regression import MeanAbsoluteError, MeanSquaredError

        from drumline.tasks.all_rows import RSquared

        # In float64, so that the order of adding up cannot be seen.
        mae = MeanAbsoluteError().set_dtype(torch.float64)
        rmse = MeanSquaredError(squared=False).set_dtype(torch.float64)
        return {"mae": mae, "rmse": rmse, "r2": RSquared()}

    def measure(self, metrics: Mapping[str, Metric], outputs: Tensor, batch: Batch) -> None:
        """Take in one batch."""
        targets = self._targets(outputs, batch)
        metrics["mae"].update(outputs.double().flatten(), targets.double().flatten())
        metrics["rmse"].update(outputs.double().flatten(), targets.double().flatten())
        metrics["r2"].update(outputs, targets)

    def predict(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Numbers, [B], or [B, num_targets] for several."""
        return outputs.squeeze(-1) if self._num_targets == 1 else outputs

    def _targets(self, outputs: Tensor, batch: Batch) -> Tensor:
        return labels_of(batch).to(outputs.dtype).reshape(-1, self._num_targets)
