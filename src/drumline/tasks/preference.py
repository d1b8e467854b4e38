"""Of two answers the better one: direct preference optimisation (DPO)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline.data.label_places import PLACES
from drumline.errors import DataError
from drumline.models.causal_head import token_losses
from drumline.models.reference import run_reference
from drumline.models.token_losses import Tail
from drumline.parallel.strategy import Batch, Loss
from drumline.tasks.batches import in_full, scores_of
from drumline.tasks.ranges import IGNORED, check_ids, check_labels, tensor_of

CHOSEN, REJECTED = "chosen", "rejected"


class LogProbabilities(NamedTuple):
    """Of the learned tokens of each answer, summed: [B] each, at least in float32."""

    chosen: Tensor
    rejected: Tensor
    reference_chosen: Tensor
    reference_rejected: Tensor


class Preference:
    """DPO (Rafailov et al. 2023, equation 7), summed over pairs.

    Batches are {"chosen": part, "rejected": part}, of the same prompts in the same order; a part has what a causal
    language model's batch has: input_ids, labels (shifted, -100 ignored) and attention_mask, [B, T] each. The reference
    is the model at the start, see `models.reference.add_reference`: without dropout, the loss begins at log 2.

    label_smoothing: share of pairs that are taken to be the wrong way round (Mitchell 2023, conservative DPO).
    """

    unit = "samples"
    needs_count = False
    """The total is a sum."""

    def __init__(
        self, vocab_size: int, beta: float = 0.1, label_smoothing: float = 0.0, tail: Tail | None = None
    ) -> None:
        """tail: what `models.causal_head.find_tail` gives, for logits of some tokens at a time; None: all at once."""
        self._vocab_size = vocab_size
        self._beta = beta
        self._label_smoothing = label_smoothing
        self._tail = tail

    def count(self, batch: Batch) -> int:
        """Pairs; DataError where a batch has none."""
        sizes = [tensor_of(_part(batch, name), "labels").shape[0] for name in (CHOSEN, REJECTED)]
        if sizes[0] != sizes[1]:
            raise DataError(f"a batch has {sizes[0]} chosen and {sizes[1]} rejected answers", "give both of each pair")
        return sizes[0]

    def check(self, batch: Batch) -> None:
        """Raise ValueRangeError for ids or labels outside of [0, vocab_size)."""
        for name in (CHOSEN, REJECTED):
            part = _part(batch, name)
            check_ids(tensor_of(part, "input_ids"), self._vocab_size, f"{name} input_ids")
            check_labels(tensor_of(part, "labels"), self._vocab_size)

    def forward(self, model: nn.Module, batch: Batch) -> LogProbabilities:
        """Run the reference and the model, each once over all answers."""
        joined = together(_part(batch, CHOSEN), _part(batch, REJECTED))
        # First, so that its activations are gone when the model's are kept.
        reference = run_reference(model, lambda model: self._answers(model, joined))
        own = self._answers(model, joined)
        return LogProbabilities(*own.chunk(2), *reference.chunk(2))

    def _answers(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Log-probability of each answer [2B]."""
        inputs: dict[str, Any] = {name: value for name, value in batch.items() if name not in ("labels", PLACES)}
        labels = batch["labels"]
        if self._tail is not None:
            losses = token_losses(model, inputs, labels, self._tail, batch.get(PLACES))
        else:
            scores = in_full(scores_of(model(**inputs))).transpose(1, 2)
            losses = F.cross_entropy(scores, labels, ignore_index=IGNORED, reduction="none")
        return -losses.sum(1)

    def loss(self, outputs: LogProbabilities, batch: Batch) -> Loss:
        """The sum over pairs; metrics are means over pairs.

        accuracy: the chosen answer's reward is the higher one; margin: by how much; chosen_reward, rejected_reward:
        beta times what the answer's log-probability has gained since the start.
        """
        own = outputs.chosen - outputs.rejected
        gained = own - (outputs.reference_chosen - outputs.reference_rejected)
        margin = self._beta * gained
        right = F.logsigmoid(margin) * (1 - self._label_smoothing)
        each = -right - F.logsigmoid(-margin) * self._label_smoothing
        chosen = self._beta * (outputs.chosen - outputs.reference_chosen)
        rejected = self._beta * (outputs.rejected - outputs.reference_rejected)
        pairs = len(margin)
        metrics: dict[str, tuple[Tensor | float, Tensor | float]] = {
            "accuracy": ((margin > 0).sum(), pairs),
            "margin": (margin.sum(), pairs),
            "chosen_reward": (chosen.sum(), pairs),
            "rejected_reward": (rejected.sum(), pairs),
        }
        return Loss(each.sum(), metrics=metrics)


def together(chosen: Mapping[str, Tensor], rejected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Both parts as one batch [2B, T] of the longer one's length, filled up with what nothing is learned from."""
    length = max(part["labels"].shape[1] for part in (chosen, rejected))
    filling = {"labels": IGNORED, "input_ids": 0, "attention_mask": 0}
    found = {}
    for name in (name for name in chosen if name != PLACES):
        both = [
            F.pad(part[name], (0, length - part[name].shape[1]), value=filling.get(name, 0))
            for part in (chosen, rejected)
        ]
        found[name] = torch.cat(both)
    if PLACES in chosen and PLACES in rejected:
        first = 0
        places = []
        for part in (chosen, rejected):
            rows, width = part["labels"].shape
            places.append((part[PLACES] // width + first) * length + part[PLACES] % width)
            first += rows
        found[PLACES] = torch.cat(places)
    return found


def _part(batch: Batch, name: str) -> Mapping[str, Tensor]:
    part = batch.get(name) if isinstance(batch, Mapping) else None
    if not isinstance(part, Mapping):
        found = f"has {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else f"is a {type(batch).__name__}"
        raise DataError(
            f"a batch of preferences needs '{name}', and this one {found}",
            f"let the data set or its collate function give a mapping with '{CHOSEN}' and '{REJECTED}'",
        )
    return part
