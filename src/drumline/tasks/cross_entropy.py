"""Cross-entropy as a sum, and what follows from its mean."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from drumline.tasks.batches import in_full
from drumline.tasks.ranges import IGNORED

LARGEST_EXPONENT = 709.0
"""exp of more does not fit a float64."""


def summed_cross_entropy(scores: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """The sum over labels that are not -100; scores [..., C], labels [...]. In float32 (float64 stays)."""
    return F.cross_entropy(
        in_full(scores).flatten(0, -2),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=label_smoothing,
    )


def exact_matches(correct: Tensor, labels: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(texts of which every label that counts is correct, texts with such labels), as a Loss has its metrics.

    correct: bool, labels: [B, T]. A text is a row; with positions [B, T] it begins wherever they are 0.
    """
    counts = labels != IGNORED
    wrong = counts & ~correct
    if positions is None:
        has = counts.any(1)
        return (has & ~wrong.any(1)).sum(), has.sum()
    begins = positions == 0
    begins[:, 0] = True
    # As many places as there are tokens, since only the device knows how many texts.
    text = begins.flatten().cumsum(0) - 1
    has, failed = (
        torch.zeros_like(text).index_add(0, text, each.flatten().to(text.dtype)) > 0 for each in (counts, wrong)
    )
    return (has & ~failed).sum(), has.sum()


def counted(labels: Tensor) -> Tensor:
    """How many labels count, a scalar."""
    return (labels != IGNORED).sum()


def perplexity(means: Mapping[str, float]) -> dict[str, float]:
    """The exponential of the mean loss (in nats), where there is one."""
    if "loss" not in means:
        return {}
    loss = means["loss"]
    return {"perplexity": math.inf if loss > LARGEST_EXPONENT else math.exp(loss)}
