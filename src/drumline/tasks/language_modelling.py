"""Next-token prediction over rows whose labels are already shifted."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from drumline.data.label_places import PLACES
from drumline.errors import ConfigError
from drumline.models.causal_head import summed_loss
from drumline.models.chunked_loss import SummedLoss
from drumline.models.decoder import Decoder
from drumline.models.huggingface import is_pretrained
from drumline.models.token_losses import Tail
from drumline.parallel.strategy import Batch, Loss
from drumline.tasks.cross_entropy import counted, exact_matches, perplexity, summed_cross_entropy
from drumline.tasks.ranges import IGNORED, check_ids, check_labels, tensor_of

POSITIONS = "position_ids"


class LanguageModelling:
    """Cross-entropy summed over tokens; batches are {"input_ids", "labels"}, both int64 [B, T], -100 is ignored.

    labels[i] is the token after input_ids[i]. The model maps input_ids to logits [B, T, vocab_size]. What else a batch
    has is handed to it by name, if it takes it: an attention_mask of padded rows, or the position_ids [B, T] of packed
    ones, which begin again at 0 with each text.
    """

    unit = "tokens"
    needs_count = False
    """The total is a sum: a micro-batch without labels gives zero."""

    def __init__(self, vocab_size: int, *, chunked_loss: bool | Tail = False, exact_match: bool = False) -> None:
        """chunked_loss: logits and loss of some tokens at a time, never all of them.

        True for a Decoder; for a Hugging Face model what `models.causal_head.find_tail` gives. exact_match: whether
        that metric is wanted.
        """
        self._vocab_size = vocab_size
        self._chunked_loss = chunked_loss
        self._exact_match = exact_match

    def count(self, batch: Batch) -> int:
        """Labels that are not -100."""
        return int((tensor_of(batch, "labels") != IGNORED).sum())

    def check(self, batch: Batch) -> None:
        """Raise ValueRangeError for ids or labels outside of [0, vocab_size)."""
        check_ids(tensor_of(batch, "input_ids"), self._vocab_size, "input_ids")
        if "labels" in batch:
            check_labels(tensor_of(batch, "labels"), self._vocab_size)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor | SummedLoss:
        """Logits [B, T, vocab_size], also of a Hugging Face model; with chunked_loss what comes of the labels.

        Raises ConfigError for chunked_loss with a model that it was not made for.
        """
        inputs = _inputs(model, batch)
        if self._chunked_loss is not False and "labels" in batch:
            return self._chunked(model, inputs, batch)
        # By place where it is alone: not every model calls it so.
        outputs = model(**inputs) if len(inputs) > 1 else model(inputs["input_ids"])
        return outputs if isinstance(outputs, Tensor) else outputs.logits

    def _chunked(self, model: nn.Module, inputs: dict[str, Any], batch: Batch) -> SummedLoss:
        tail = self._chunked_loss
        if isinstance(tail, Tail):
            return summed_loss(model, inputs, batch["labels"], tail, batch.get(PLACES))
        if not isinstance(model, Decoder):
            raise ConfigError(
                f"chunked_loss needs a model that computes its own loss, and a {type(model).__name__} gives logits",
                "leave it off, or take a drumline.models.decoder.Decoder; for a Hugging Face model give "
                "chunked_loss=drumline.models.causal_head.find_tail(model)",
            )
        loss: SummedLoss = model(**inputs, labels=batch["labels"])
        return loss

    def loss(self, outputs: Tensor | SummedLoss, batch: Batch) -> Loss:
        """The sum over tokens in float32 (float64 stays).

        Without gradient also accuracy, and exact_match where it is wanted: the share of rows, of packed ones texts,
        whose labels all have the highest logit, of those that have labels.
        """
        labels = batch["labels"]
        total = outputs.total if isinstance(outputs, SummedLoss) else summed_cross_entropy(outputs, labels)
        if torch.is_grad_enabled():
            return Loss(total)  # training pays for no pass over the logits that its gradient does not need
        correct = outputs.correct if isinstance(outputs, SummedLoss) else outputs.argmax(-1) == labels
        assert correct is not None
        correct = correct & (labels != IGNORED)
        metrics: dict[str, tuple[Tensor | float, Tensor | float]] = {"accuracy": (correct.sum(), counted(labels))}
        if self._exact_match:
            metrics["exact_match"] = exact_matches(correct, labels, batch.get(POSITIONS))
        return Loss(total, metrics=metrics)

    def derived(self, means: Mapping[str, float]) -> dict[str, float]:
        """The perplexity: the exponential of the mean loss of a token."""
        return perplexity(means)


def _inputs(model: nn.Module, batch: Batch) -> dict[str, Any]:
    """What of a batch the model takes."""
    inputs = {name: value for name, value in batch.items() if name not in ("labels", PLACES)}
    if len(inputs) == 1 or is_pretrained(model):  # whose bodies hand on what they do not take themselves
        return inputs
    taken = inspect.signature(model.forward).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values()):
        return inputs
    return {name: value for name, value in inputs.items() if name in taken or name == "input_ids"}
