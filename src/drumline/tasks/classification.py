"""One class a row, of a text, an image or a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from drumline.parallel.strategy import Batch, Loss
from drumline.tasks.batches import call_model, check_shape, has_labels, labels_of, scores_of
from drumline.tasks.by_class import f1_by_class
from drumline.tasks.cross_entropy import summed_cross_entropy
from drumline.tasks.ranges import IGNORED, check_labels

if TYPE_CHECKING:
    from torchmetrics import Metric

MOST_CURVES = 100
"""Classes up to which the area under the curve is computed: it keeps a score a row and class."""


class Classification:
    """Cross-entropy summed over rows; labels int64 [B], -100 is ignored; the model gives scores [B, num_classes]."""

    unit = "samples"
    needs_count = False
    """The total is a sum: a micro-batch without labels gives zero."""

    def __init__(self, num_classes: int, label_smoothing: float = 0.0, names: Sequence[str] = ()) -> None:
        """names: of the classes, for metrics of each."""
        self._num_classes = num_classes
        self._label_smoothing = label_smoothing
        self._names = tuple(names)

    def count(self, batch: Batch) -> int:
        """Labels that are not -100."""
        return int((labels_of(batch) != IGNORED).sum())

    def check(self, batch: Batch) -> None:
        """Raise ValueRangeError for labels outside of [0, num_classes)."""
        if has_labels(batch):
            check_labels(labels_of(batch), self._num_classes)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """Scores [B, num_classes]."""
        return scores_of(call_model(model, batch))

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        """The sum over rows; without gradient, of classes with names, also the metrics f1/<name>."""
        labels = labels_of(batch)
        check_shape(outputs, (*labels.shape, self._num_classes))
        each = f1_by_class(outputs, labels, self._names)
        return Loss(summed_cross_entropy(outputs, labels, self._label_smoothing), metrics=each)

    def metrics(self) -> dict[str, Metric]:
        """Accuracy; F1, the mean over classes; AUC, of class 1 of two, else the mean over classes, one against all.

        AUC is left out for more than 100 classes.
        """
        from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

        from drumline.tasks.all_rows import AreaUnderCurve

        found: dict[str, Metric] = {
            "accuracy": MulticlassAccuracy(self._num_classes, average="micro", validate_args=False),
            "f1": MulticlassF1Score(self._num_classes, average="macro", validate_args=False),
        }
        if self._num_classes <= MOST_CURVES:
            found["auc"] = AreaUnderCurve()
        return found

    def measure(self, metrics: Mapping[str, Metric], outputs: Tensor, batch: Batch) -> None:
        """Take in one batch."""
        labels = labels_of(batch)
        counted = labels != IGNORED
        scores, labels = outputs[counted], labels[counted]
        predicted = scores.argmax(-1)
        metrics["accuracy"].update(predicted, labels)
        metrics["f1"].update(predicted, labels)
        if "auc" in metrics:
            # By logarithms: probabilities near 1 would round to one value and tie.
            first = 1 if self._num_classes == 2 else 0
            truth = F.one_hot(labels, self._num_classes).bool()
            metrics["auc"].update(scores.log_softmax(-1)[:, first:], truth[:, first:])

    def predict(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The likeliest class as `label` [B], and `probabilities` [B, num_classes]."""
        return {"label": outputs.argmax(-1), "probabilities": outputs.softmax(-1)}
