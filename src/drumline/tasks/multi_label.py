"""Any number of classes a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from drumline.parallel.strategy import Batch, Loss
from drumline.tasks.batches import call_model, check_shape, has_labels, labels_of, scores_of
from drumline.tasks.by_class import f1_by_label
from drumline.tasks.ranges import check_fractions

if TYPE_CHECKING:
    from torchmetrics import Metric

PRESENT = 0.5
"""Label from which on a class counts as present, where metrics need yes or no."""


class MultiLabel:
    """Binary cross-entropy, its mean over classes, summed over rows.

    Labels are float [B, num_labels], 0 to 1; the model gives scores of that shape. A class counts as predicted from
    the probability `threshold` on.
    """

    unit = "samples"
    needs_count = False
    """The total is a sum."""

    def __init__(self, num_labels: int, threshold: float = 0.5, names: Sequence[str] = ()) -> None:
        """names: of the classes, for metrics of each."""
        self._num_labels = num_labels
        self._threshold = threshold
        self._names = tuple(names)

    def count(self, batch: Batch) -> int:
        """Rows."""
        return labels_of(batch).shape[0]

    def check(self, batch: Batch) -> None:
        """Raise ValueRangeError for labels that are not float [B, num_labels] from 0 to 1."""
        if has_labels(batch):
            check_fractions(labels_of(batch), self._num_labels)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """Scores [B, num_labels]."""
        return scores_of(call_model(model, batch))

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        """The sum over rows; without gradient, of classes with names, also the metrics f1/<name>."""
        labels = labels_of(batch)
        check_shape(outputs, tuple(labels.shape))
        each = F.binary_cross_entropy_with_logits(outputs, labels.to(outputs.dtype), reduction="none")
        by_label = f1_by_label(outputs, labels >= PRESENT, self._threshold, self._names)
        return Loss(each.mean(-1).sum(), metrics=by_label)

    def metrics(self) -> dict[str, Metric]:
        """F1 and AUC, each the mean over classes."""
        from torchmetrics.classification import MultilabelF1Score

        from drumline.tasks.all_rows import AreaUnderCurve

        f1 = MultilabelF1Score(self._num_labels, average="macro", validate_args=False)
        return {"f1": f1, "auc": AreaUnderCurve()}

    def measure(self, metrics: Mapping[str, Metric], outputs: Tensor, batch: Batch) -> None:
        """Take in one batch."""
        present = labels_of(batch) >= PRESENT
        predicted = self.predict(outputs, batch)["labels"]
        # As whole numbers, since torchmetrics would apply a threshold of its own to anything else.
        metrics["f1"].update(predicted.long(), present.long())
        metrics["auc"].update(outputs, present)

    def predict(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The predicted classes as `labels` bool [B, num_labels], and `probabilities` of the same shape."""
        probabilities = outputs.sigmoid()
        return {"labels": probabilities >= self._threshold, "probabilities": probabilities}
