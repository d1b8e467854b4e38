"""Metrics that need every row at once. Imported where they are used: torchmetrics costs a second.

They keep two tensors a batch, in the order of the rows, so that all ranks' rows put together are those of one process
and so is the value, to the last bit. Where torchmetrics has the metric too, it is said why it does not serve.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

BLOCK = 1000
"""Rows among which a pair is looked for: a fixed number, so that the value does not follow the batch size."""


class AllRows(Metric):
    """Keeps outputs and targets, both [rows, ...], until the value is computed of all of them."""

    full_state_update = False

    outputs: list[Tensor]
    targets: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("outputs", default=[], dist_reduce_fx="cat")
        self.add_state("targets", default=[], dist_reduce_fx="cat")

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Keep one batch."""
        self.outputs.append(outputs.detach())
        self.targets.append(targets.detach())

    def compute(self) -> Tensor:
        """The value over all rows, a scalar; NaN where it is not defined."""
        return self.value(dim_zero_cat(self.outputs), dim_zero_cat(self.targets))

    @abstractmethod
    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The value over these rows."""


class AreaUnderCurve(AllRows):
    """Area under the ROC curve; scores [rows, C] against truth bool [rows, C], the mean over columns.

    By ranks (Mann-Whitney), equal scores sharing theirs. A column without both kinds of truth has no curve and is left
    out; torchmetrics counts it as 0, with a warning. Scores may have any scale: no sigmoid rounds large ones together.
    """

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The value over these rows."""
        areas = [self._area(outputs[:, column], targets[:, column]) for column in range(outputs.shape[1])]
        known = [area for area in areas if area is not None]
        return torch.stack(known).mean() if known else torch.tensor(torch.nan)

    def _area(self, scores: Tensor, truth: Tensor) -> Tensor | None:
        positives = int(truth.sum())
        negatives = len(truth) - positives
        if not positives or not negatives:
            return None
        _, place, sizes = scores.unique(return_inverse=True, return_counts=True)
        last = sizes.cumsum(0).double()
        rank = last - (sizes.double() - 1) / 2
        above = rank[place][truth].sum() - positives * (positives + 1) / 2
        area: Tensor = above / (positives * negatives)
        return area


class RSquared(AllRows):
    """1 less the squared error over the targets' variance; both [rows, D], the mean over columns that vary.

    In float64, around the mean: torchmetrics takes a difference of sums of squares in float32, which cancels, and
    takes targets for constant whose squares add up to less than 1e-4.
    """

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The value over these rows."""
        outputs, targets = outputs.double(), targets.double()
        error = (targets - outputs).square().sum(0)
        spread = (targets - targets.mean(0)).square().sum(0)
        varies = (targets != targets[0]).any(0)
        return (1 - error[varies] / spread[varies]).mean()


class Retrieval(AllRows):
    """Share of rows whose own partner is the most similar one of its block; both [rows, D], of length 1.

    Blocks are 1,000 rows that follow one another, the last one what is left.
    """

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The value over these rows."""
        found = 0
        for anchors, partners in zip(outputs.split(BLOCK), targets.split(BLOCK), strict=True):
            own = torch.arange(len(anchors), device=anchors.device)
            found += int(((anchors @ partners.T).argmax(-1) == own).sum())
        return torch.tensor(found / len(outputs), dtype=torch.float64)
