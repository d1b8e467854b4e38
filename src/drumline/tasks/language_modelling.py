"""Next-token prediction over rows whose labels are already shifted."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline.parallel.strategy import Batch, Loss
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
        check_labels(tensor_of(batch, "labels"), self._vocab_size)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """Logits [B, T, vocab_size], also of a Hugging Face model."""
        outputs = model(batch["input_ids"])
        return outputs if isinstance(outputs, Tensor) else outputs.logits

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        """The sum over tokens in float32 (float64 stays); without gradient also the metric accuracy."""
        logits = outputs.flatten(0, 1)
        labels = batch["labels"].flatten()
        if logits.dtype != torch.float64:
            logits = logits.float()
        total = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        if torch.is_grad_enabled():
            # Training pays for no pass over the logits that its gradient does not need.
            return Loss(total)
        return Loss(total, metrics={"accuracy": ((logits.argmax(-1) == labels).sum(), (labels != IGNORED).sum())})
