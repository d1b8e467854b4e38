"""One class a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from drumline.parallel.strategy import Batch, Loss
from drumline.tasks.batches import call_model, check_shape, has_labels, inputs_of, labels_of, scores_of
from drumline.tasks.by_class import f1_by_class
from drumline.tasks.cross_entropy import summed_cross_entropy
from drumline.tasks.ranges import IGNORED, check_labels

if TYPE_CHECKING:
    from torchmetrics import Metric


class TokenClassification:
    """Cross-entropy summed over tokens; labels int64 [B, T], -100 is ignored; the model gives scores [B, T, C]."""

    unit = "tokens"
    needs_count = False
    """The total is a sum: a micro-batch without labels gives zero."""

    def __init__(self, num_classes: int, names: Sequence[str] = ()) -> None:
        """names: of the classes, for metrics of each."""
        self._num_classes = num_classes
        self._names = tuple(names)

    def count(self, batch: Batch) -> int:
        """Labels that are not -100."""
        return int((labels_of(batch) != IGNORED).sum())

    def check(self, batch: Batch) -> None:
        """Raise ValueRangeError for labels outside of [0, num_classes)."""
        if has_labels(batch):
            check_labels(labels_of(batch), self._num_classes)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """Scores [B, T, num_classes]."""
        return scores_of(call_model(model, batch))

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        """The sum over tokens; without gradient, of classes with names, also the metrics f1/<name>."""
        labels = labels_of(batch)
        check_shape(outputs, (*labels.shape, self._num_classes))
        each = f1_by_class(outputs, labels, self._names)
        return Loss(summed_cross_entropy(outputs, labels), metrics=each)

    def metrics(self) -> dict[str, Metric]:
        """Accuracy, and F1, the mean over classes, both over the tokens that count."""
        from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

        return {
            "accuracy": MulticlassAccuracy(self._num_classes, average="micro", validate_args=False),
            "f1": MulticlassF1Score(self._num_classes, average="macro", validate_args=False),
        }

    def measure(self, metrics: Mapping[str, Metric], outputs: Tensor, batch: Batch) -> None:
        """Take in one batch."""
        labels = labels_of(batch)
        counted = labels != IGNORED
        predicted = outputs.argmax(-1)[counted]
        for metric in metrics.values():
            metric.update(predicted, labels[counted])

    def predict(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The likeliest class of each token, [B, T]; -100 where attention_mask is 0."""
        classes = outputs.argmax(-1)
        inputs = inputs_of(batch)
        if isinstance(inputs, Mapping) and "attention_mask" in inputs:
            classes = classes.masked_fill(inputs["attention_mask"] == 0, IGNORED)
        return classes
