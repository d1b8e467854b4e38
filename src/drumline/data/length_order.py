"""Rows of similar length in one update, so that little of a batch is padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from drumline.data.mixture import Mixture
from drumline.data.order import Rows, epoch_order
from drumline.data.token_rows import Row

JITTER = 0.05
"""Lengths are drawn to be longer or shorter by up to so much before they are sorted: each epoch groups rows anew."""


class ByLength(Dataset[Row]):
    """A map-style data set whose epochs bring rows of similar length together; the rows are its own.

    rows: a data set with `lengths`, or a Mixture of such ones. global_batch: rows of an update.
    """

    def __init__(self, rows: Any, global_batch: int) -> None:
        self.rows = rows
        self._global_batch = global_batch
        parts = rows.parts if isinstance(rows, Mixture) else (rows,)
        self.lengths: NDArray[np.int64] = np.concatenate([np.asarray(part.lengths, dtype=np.int64) for part in parts])

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def rows_per_epoch(self) -> int:
        """Rows of one epoch, of which a mixture may have more or fewer than it holds."""
        return int(getattr(self.rows, "rows_per_epoch", len(self.rows)))

    def epoch_order(self, seed: int, epoch: int, *, shuffle: bool) -> Rows:
        """The rows of one epoch; without shuffle as they come."""
        own = getattr(self.rows, "epoch_order", None)
        if own is not None:
            chosen: Rows = own(seed, epoch, shuffle=shuffle)
        else:
            chosen = epoch_order(len(self.rows), seed, epoch, shuffle=shuffle)
        if not shuffle:
            return chosen
        return chosen[length_order(self.lengths[chosen], seed, epoch, self._global_batch, shuffle=True)]

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]  # type: ignore[no-any-return]

    def __getitems__(self, indexes: Sequence[int]) -> list[Row]:
        """Read several rows at once where the data set can."""
        at_once = getattr(self.rows, "__getitems__", None)
        return [self.rows[index] for index in indexes] if at_once is None else at_once(indexes)


def length_order(
    lengths: NDArray[Any] | Sequence[int], seed: int, epoch: int, global_batch: int, *, shuffle: bool
) -> Rows:
    """An order in which the rows of each window `order[k*B:(k+1)*B]` are of similar length; a permutation.

    Windows come in random order, the shorter one last, from any place of the sorted rows; within a window rows go from
    long to short, so that its micro-batches are alike too: a rank with the longest rows takes no longer than it would
    with some of them in each of its micro-batches. Without shuffle it is range(rows).
    """
    sizes = np.asarray(lengths, dtype=np.float64)
    if not shuffle:
        return np.arange(len(sizes), dtype=np.int64)
    generator = np.random.Generator(np.random.PCG64([seed, epoch]))
    drawn = sizes * generator.uniform(1 - JITTER, 1 + JITTER, len(sizes))
    # Among equals any order, and not the data's own.
    order = generator.permutation(len(sizes))
    order = order[np.argsort(-drawn[order], kind="stable")]
    num_whole, rest = divmod(len(order), global_batch)
    cut = int(generator.integers(num_whole + 1)) * global_batch
    short = order[cut : cut + rest]
    whole = np.concatenate([order[:cut], order[cut + rest :]]).reshape(num_whole, global_batch)
    windows = [*whole[generator.permutation(num_whole)], short]
    # The jitter has changed places within a window: sort by the lengths themselves.
    return np.concatenate([window[np.argsort(-sizes[window], kind="stable")] for window in windows]).astype(np.int64)
