"""Which rows make which update: pure functions of seed, epoch and position, whatever the world."""

from __future__ import annotations

from collections.abc import Iterator
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


class MicroRows(NamedTuple):
    """The rows of one micro-batch of one shard. weight 0: rows of another shard, to take part without weight."""

    rows: Rows
    weight: int


def window_rows(window: Rows, shard: int, num_shards: int, micro_batch: int) -> list[MicroRows]:
    """One shard's micro-batches of a window: its balanced part, cut evenly into at most `micro_batch` rows each.

    A shard without rows gets the first shard's one row with weight 0.
    """
    shares = balanced(len(window), num_shards)
    weight = 1 if shares[shard] else 0
    own = shares[shard] if weight else shares[0]
    rows = window[own.start : own.stop]
    pieces = balanced(len(rows), -(-len(rows) // micro_batch))
    return [MicroRows(rows[piece.start : piece.stop], weight) for piece in pieces]


class Cut(NamedTuple):
    """How windows are cut for one shard."""

    global_batch: int
    micro_batch: int
    shard: int
    num_shards: int


def epoch_windows(order: Rows, cut: Cut, start: int = 0) -> Iterator[list[MicroRows]]:
    """The windows `order[k*B:(k+1)*B]` of one epoch from window `start` on; the last one may be shorter."""
    for first in range(start * cut.global_batch, len(order), cut.global_batch):
        window = order[first : first + cut.global_batch]
        yield window_rows(window, cut.shard, cut.num_shards, cut.micro_batch)


def evaluation_batches(num_rows: int, cut: Cut) -> list[list[int]]:
    """One shard's batches of an evaluation: a contiguous part, each row once, none for shards without rows."""
    part = balanced(num_rows, cut.num_shards)[cut.shard]
    return [list(part[i : i + cut.micro_batch]) for i in range(0, len(part), cut.micro_batch)]
