"""F1 of each class, as sums that are exact over ranks and batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from drumline.tasks.ranges import IGNORED

MOST_CLASSES = 100
"""Classes up to which each has an F1 of its own: more would fill every line of metrics."""

Sums = Mapping[str, tuple[Tensor | float, Tensor | float]]
"""As a Loss has its metrics."""


def f1_by_class(scores: Tensor, labels: Tensor, names: Sequence[str]) -> Sums:
    """`f1/<name>` of each class, in their order; scores [..., C], labels int64 [...], of which -100 do not count.

    F1 is twice the rows that are of the class and predicted so, over the rows of the class and those predicted as it:
    a class with neither is left out. Empty outside of evaluations, without names, and for more than 100 of them.
    """
    if not _wanted(names):
        return {}
    labels, predicted = labels.flatten(), scores.argmax(-1).flatten()
    # Those that do not count go to a class of their own: how many there are only the device knows.
    none = len(names)
    counts = labels != IGNORED
    truth, found = labels.where(counts, none), predicted.where(counts, none)
    both = truth.where(truth == found, none)
    ones, zeros = torch.ones_like(labels), labels.new_zeros(none + 1)
    num_truth, num_found, num_both = (zeros.index_add(0, each, ones)[:none] for each in (truth, found, both))
    return _sums(2 * num_both, num_truth + num_found, names)


def f1_by_label(scores: Tensor, present: Tensor, threshold: float, names: Sequence[str]) -> Sums:
    """The same where a row has any number of classes, each predicted from that probability on.

    scores [rows, C]; present: bool [rows, C].
    """
    if not _wanted(names):
        return {}
    predicted = scores.sigmoid() >= threshold
    return _sums(2 * (predicted & present).sum(0), predicted.sum(0) + present.sum(0), names)


def _wanted(names: Sequence[str]) -> bool:
    return not torch.is_grad_enabled() and 0 < len(names) <= MOST_CLASSES


def _sums(values: Tensor, weights: Tensor, names: Sequence[str]) -> Sums:
    pairs = zip(names, values.unbind(), weights.unbind(), strict=True)
    return {f"f1/{name}": (value, weight) for name, value, weight in pairs}
