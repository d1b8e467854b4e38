"""The loss that a transformers model computes itself, turned from a mean into a sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from drumline.errors import ConfigError, ValueRangeError
from drumline.models.huggingface import head_of, learned_positions, text_config
from drumline.parallel.strategy import Batch, Loss
from drumline.tasks.cross_entropy import perplexity
from drumline.tasks.ranges import IGNORED, check_ids, check_labels, tensor_of


class HuggingFaceLoss:
    """`model(**batch).loss` of a causal, masked, token or sequence classification model, times what it is a mean of.

    That is the labels that are not -100; after the shift for causal models; the rows for regression and several
    labels a row. A loss that a mixture of experts adds for its router is weighed with the rest, by labels.
    Keeps nothing of the model but numbers, so that loader processes can have it. Raises ConfigError for other models.
    """

    needs_count = True
    """The total is a mean times a count: a micro-batch with count 0 would be 0/0 and must not be run."""

    def __init__(self, model: nn.Module) -> None:
        head = head_of(model)
        if head is None:
            raise ConfigError(
                f"what the loss of {type(model).__name__} is a mean of is not known",
                "give loss= with a task, as drumline.tasks has them, or loss=lambda model, batch: model(**batch) and "
                "count= with a function from a batch to that number",
            )
        config: Any = model.config
        self._head = head
        self.unit = "samples" if head == "sequence_classification" else "tokens"
        self._vocab_size: int | None = getattr(text_config(model), "vocab_size", None)
        self._num_labels: int = config.num_labels
        self._problem: str | None = config.problem_type
        self._longest = learned_positions(model) if head == "causal" else None

    def count(self, batch: Batch) -> int:
        """Labels, or rows, that the model's loss is a mean over."""
        return int(self.counted(batch))

    def counted(self, batch: Batch) -> Tensor | int:
        """The same without waiting for the device: a scalar tensor on the labels' device, or the number of rows."""
        labels = tensor_of(batch, "labels")
        if self._by_rows(labels):
            return labels.shape[0]
        if self._head == "causal":
            labels = labels[..., 1:]
        return (labels != IGNORED).sum()

    def check(self, batch: Batch) -> None:
        """Raise ValueRangeError for ids, labels or lengths that the model has no row for."""
        if self._vocab_size is not None and "input_ids" in batch:
            ids = tensor_of(batch, "input_ids")
            check_ids(ids, self._vocab_size, "input_ids")
            if self._longest is not None and ids.shape[-1] > self._longest:
                raise ValueRangeError(
                    f"rows have {ids.shape[-1]} tokens, the model has {self._longest} positions",
                    "cut the rows, or take a model with a longer context",
                )
        if "labels" not in batch:
            return
        labels = tensor_of(batch, "labels")
        if self._head in ("causal", "masked"):
            check_labels(labels, self._vocab_size or self._num_labels)
        elif not self._by_rows(labels):
            check_labels(labels, self._num_labels)

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        """The model's own output."""
        # Without num_items_in_batch: with it, models give a sum divided by that number instead of the mean.
        return model(**batch)

    def loss(self, outputs: Any, batch: Batch) -> Loss:
        """The model's mean times its count; not a number where the count is 0."""
        return Loss(outputs.loss * self.counted(batch))

    def derived(self, means: Mapping[str, float]) -> dict[str, float]:
        """The perplexity of a language model: the exponential of the mean loss of a token."""
        return perplexity(means) if self._head in ("causal", "masked") else {}

    def predict(self, outputs: Any, batch: Batch) -> Tensor:
        """The model's scores: [B, num_labels], or [B, T, num_labels] of a token classifier.

        Raises ConfigError for a language model, whose scores of a whole vocabulary fill the memory.
        """
        if self._head in ("causal", "masked"):
            raise ConfigError(
                "what shall be predicted with a language model is not known",
                "give forward= with a function of (model, batch), such as lambda model, batch: model.generate(**batch)",
            )
        return outputs.logits  # type: ignore[no-any-return]

    def _by_rows(self, labels: Tensor) -> bool:
        """Regression and multi-label targets, by transformers' own rule."""
        if self._head != "sequence_classification":
            return False
        if self._problem is not None:
            return self._problem != "single_label_classification"
        return self._num_labels == 1 or labels.is_floating_point()
