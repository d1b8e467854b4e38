"""Cross-entropy as a sum, and what follows from its mean."""

from __future__ import annotations

import math
from collections.abc import Mapping

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


def hits(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(labels whose score is the highest, labels that count), as a Loss has its metrics."""
    return (scores.argmax(-1) == labels).sum(), counted(labels)


def counted(labels: Tensor) -> Tensor:
    """How many labels count, a scalar."""
    return (labels != IGNORED).sum()


def perplexity(means: Mapping[str, float]) -> dict[str, float]:
    """The exponential of the mean loss (in nats), where there is one."""
    if "loss" not in means:
        return {}
    loss = means["loss"]
    return {"perplexity": math.inf if loss > LARGEST_EXPONENT else math.exp(loss)}
