"""Which rows make which update: pure functions of seed, epoch and position, whatever the world."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


def epoch_order(num_rows: int, seed: int, epoch: int, *, shuffle: bool) -> Rows:
    """The order of one epoch: a permutation of range(num_rows), or the range itself."""
    if not shuffle:
        return np.arange(num_rows, dtype=np.int64)
    return shuffled(np.arange(num_rows, dtype=np.int64), seed, epoch)


def shuffled(rows: Rows, seed: int, epoch: int) -> Rows:
    """These rows in an order drawn from seed and epoch."""
    return rows[np.random.Generator(np.random.PCG64([seed, epoch])).permutation(len(rows))]


def balanced(length: int, parts: int) -> list[range]:
    """Cut range(length) into `parts` contiguous ranges whose sizes differ by at most one, the longer ones first."""
    size, longer = divmod(length, parts)
    starts = [part * size + min(part, longer) for part in range(parts + 1)]
    return [range(starts[part], starts[part + 1]) for part in range(parts)]


def weighted(length: int, weights: Sequence[float]) -> list[range]:
    """Cut range(length) into contiguous ranges in proportion to positive weights, by largest remainder.

    Each has its exact share rounded down, and what is left goes to the largest fractions, the first ones of equals.
    """
    total = sum(weights)
    exact = [length * weight / total for weight in weights]
    sizes = [int(share) for share in exact]
    by_fraction = sorted(range(len(exact)), key=lambda part: sizes[part] - exact[part])
    for part in by_fraction[: length - sum(sizes)]:
        sizes[part] += 1
    ends = list(accumulate(sizes))
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]


class MicroRows(NamedTuple):
    """The rows of one micro-batch of one shard. weight 0: rows of another shard, to take part without weight."""

    rows: Rows
    weight: int


class Cut(NamedTuple):
    """How windows are cut for one shard."""

    global_batch: int
    micro_batch: int
    shard: int
    num_shards: int
    weights: tuple[float, ...] | None = None
    """Each shard's share of every window, as positive numbers in proportion; None: equal shares."""


def window_rows(window: Rows, cut: Cut) -> list[MicroRows]:
    """One shard's micro-batches of a window: its contiguous part, cut evenly into at most `micro_batch` rows each.

    A shard without rows gets the first row of the first shard that has some, with weight 0.
    """
    length = len(window)
    shares = balanced(length, cut.num_shards) if cut.weights is None else weighted(length, cut.weights)
    own = shares[cut.shard]
    weight = 1 if own else 0
    if not own:
        own = next(share for share in shares if share)[:1]
    rows = window[own.start : own.stop]
    pieces = balanced(len(rows), -(-len(rows) // cut.micro_batch))
    return [MicroRows(rows[piece.start : piece.stop], weight) for piece in pieces]


def epoch_windows(order: Rows, cut: Cut, start: int = 0) -> Iterator[list[MicroRows]]:
    """The windows `order[k*B:(k+1)*B]` of one epoch from window `start` on; the last one may be shorter."""
    for first in range(start * cut.global_batch, len(order), cut.global_batch):
        window = order[first : first + cut.global_batch]
        yield window_rows(window, cut)


def evaluation_batches(num_rows: int, cut: Cut) -> list[list[int]]:
    """One shard's batches of an evaluation: a contiguous part, each row once, none for shards without rows."""
    part = balanced(num_rows, cut.num_shards)[cut.shard]
    return [list(part[i : i + cut.micro_batch]) for i in range(0, len(part), cut.micro_batch)]
