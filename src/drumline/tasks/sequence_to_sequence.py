"""Text from text, by an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from drumline.parallel.strategy import Batch, Loss
from drumline.tasks.batches import has_labels, inputs_of, labels_of, scores_of
from drumline.tasks.cross_entropy import counted, exact_matches, perplexity, summed_cross_entropy
from drumline.tasks.ranges import IGNORED, check_ids, check_labels, tensor_of


class SequenceToSequence:
    """Cross-entropy summed over target tokens; labels int64 [B, T] are the target itself, -100 is ignored.

    A batch without `decoder_input_ids` gets those that the model makes of the labels, one place to the right. A model
    without a function for that is given the labels, and makes them inside (its own loss is not used).

    There is no `predict`: what such a model writes comes from its `generate`.
    """

    unit = "tokens"
    needs_count = False
    """The total is a sum: a micro-batch without labels gives zero."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def count(self, batch: Batch) -> int:
        """Labels that are not -100."""
        return int((labels_of(batch) != IGNORED).sum())

    def check(self, batch: Batch) -> None:
        """Raise ValueRangeError for ids or labels outside of [0, vocab_size)."""
        check_ids(tensor_of(batch, "input_ids"), self._vocab_size, "input_ids")
        if has_labels(batch):
            check_labels(labels_of(batch), self._vocab_size)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """Scores [B, T, vocab_size]."""
        inputs: dict[str, Any] = inputs_of(batch)
        if "decoder_input_ids" not in inputs:
            shift: Any = getattr(model, "prepare_decoder_input_ids_from_labels", None)
            if shift is None:
                inputs["labels"] = labels_of(batch)
            else:
                inputs["decoder_input_ids"] = shift(labels=labels_of(batch))
        return scores_of(model(**inputs))

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        """The sum over tokens.

        Without gradient also accuracy, and exact_match: the share of targets of which every token has the highest
        score, each after the right ones before it.
        """
        labels = labels_of(batch)
        total = summed_cross_entropy(outputs, labels)
        if torch.is_grad_enabled():
            return Loss(total)  # training pays for no pass over the scores that its gradient does not need
        correct = (outputs.argmax(-1) == labels) & (labels != IGNORED)
        accuracy, whole = (correct.sum(), counted(labels)), exact_matches(correct, labels)
        return Loss(total, metrics={"accuracy": accuracy, "exact_match": whole})

    def derived(self, means: Mapping[str, float]) -> dict[str, float]:
        """The perplexity: the exponential of the mean loss of a token."""
        return perplexity(means)
