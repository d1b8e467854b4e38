"""Next-token prediction over rows whose labels are already shifted."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from drumline.parallel.strategy import Batch, Loss
from drumline.tasks.cross_entropy import hits, perplexity, summed_cross_entropy
from drumline.tasks.ranges import IGNORED, check_ids, check_labels, tensor_of


class LanguageModelling:
    """Cross-entropy summed over tokens; batches are {"input_ids", "labels"}, both int64 [B, T], -100 is ignored.

    labels[i] is the token after input_ids[i]. The model maps input_ids to logits [B, T, vocab_size].
    """

    unit = "tokens"
    needs_count = False
    """The total is a sum: a micro-batch without labels gives zero."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def count(self, batch: Batch) -> int:
        """Labels that are not -100."""
        return int((tensor_of(batch, "labels") != IGNORED).sum())

    def check(self, batch: Batch) -> None:
        """Raise ValueRangeError for ids or labels outside of [0, vocab_size)."""
        check_ids(tensor_of(batch, "input_ids"), self._vocab_size, "input_ids")
        if "labels" in batch:
            check_labels(tensor_of(batch, "labels"), self._vocab_size)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits [B, T, vocab_size], also of a Hugging Face model."""
        outputs = model(batch["input_ids"])
        return outputs if isinstance(outputs, Tensor) else outputs.logits

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        """The sum over tokens in float32 (float64 stays); without gradient also the metric accuracy."""
        labels = batch["labels"]
        total = summed_cross_entropy(outputs, labels)
        # Training pays for no pass over the logits that its gradient does not need.
        return Loss(total) if torch.is_grad_enabled() else Loss(total, metrics={"accuracy": hits(outputs, labels)})

    def derived(self, means: Mapping[str, float]) -> dict[str, float]:
        """The perplexity: the exponential of the mean loss of a token."""
        return perplexity(means)
