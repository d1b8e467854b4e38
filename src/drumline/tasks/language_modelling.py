"""Next-token prediction over rows whose labels are already shifted."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from drumline.errors import ConfigError
from drumline.models.chunked_loss import SummedLoss
from drumline.models.decoder import Decoder
from drumline.parallel.strategy import Batch, Loss
from drumline.tasks.cross_entropy import counted, hits, perplexity, summed_cross_entropy
from drumline.tasks.ranges import IGNORED, check_ids, check_labels, tensor_of


class LanguageModelling:
    """Cross-entropy summed over tokens; batches are {"input_ids", "labels"}, both int64 [B, T], -100 is ignored.

    labels[i] is the token after input_ids[i]. The model maps input_ids to logits [B, T, vocab_size].
    """

    unit = "tokens"
    needs_count = False
    """The total is a sum: a micro-batch without labels gives zero."""

    def __init__(self, vocab_size: int, *, chunked_loss: bool = False) -> None:
        """chunked_loss: a Decoder computes logits and loss of some tokens at a time, never all of them."""
        self._vocab_size = vocab_size
        self._chunked_loss = chunked_loss

    def count(self, batch: Batch) -> int:
        """Labels that are not -100."""
        return int((tensor_of(batch, "labels") != IGNORED).sum())

    def check(self, batch: Batch) -> None:
        """Raise ValueRangeError for ids or labels outside of [0, vocab_size)."""
        check_ids(tensor_of(batch, "input_ids"), self._vocab_size, "input_ids")
        if "labels" in batch:
            check_labels(tensor_of(batch, "labels"), self._vocab_size)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor | SummedLoss:
        """Logits [B, T, vocab_size], also of a Hugging Face model; with chunked_loss what a Decoder makes of labels.

        Raises ConfigError for chunked_loss with another model.
        """
        if self._chunked_loss and "labels" in batch:
            if not isinstance(model, Decoder):
                raise ConfigError(
                    f"chunked_loss needs a model that computes its own loss, and a {type(model).__name__} gives logits",
                    "leave it off, or take a drumline.models.decoder.Decoder",
                )
            loss: SummedLoss = model(batch["input_ids"], batch["labels"])
            return loss
        outputs = model(batch["input_ids"])
        return outputs if isinstance(outputs, Tensor) else outputs.logits

    def loss(self, outputs: Tensor | SummedLoss, batch: Batch) -> Loss:
        """The sum over tokens in float32 (float64 stays); without gradient also the metric accuracy."""
        labels = batch["labels"]
        total = outputs.total if isinstance(outputs, SummedLoss) else summed_cross_entropy(outputs, labels)
        if torch.is_grad_enabled():
            return Loss(total)  # training pays for no pass over the logits that its gradient does not need
        found = (outputs.hits, counted(labels)) if isinstance(outputs, SummedLoss) else hits(outputs, labels)
        return Loss(total, metrics={"accuracy": found})

    def derived(self, means: Mapping[str, float]) -> dict[str, float]:
        """The perplexity: the exponential of the mean loss of a token."""
        return perplexity(means)
