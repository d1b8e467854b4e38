"""The feed: update windows of one shard, in order, from a map-style data set or a stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from drumline.data.loader import Piece, RowLoader
from drumline.data.order import Cut, MicroRows, Rows, epoch_windows, evaluation_batches
from drumline.data.seeds import EVALUATION, ROWS
from drumline.parallel.strategy import MicroBatch


@dataclass(frozen=True)
class Window:
    """One shard's part of one update."""

    epoch: int
    index: int
    """Number of the window in its epoch."""
    micro_batches: tuple[MicroBatch, ...]
    """Empty where no row of the whole window has anything to count: such a window is passed over by all."""

    rows: int
    """Rows of this shard that it stands for; 0 where the shard only takes part."""

    arrival: Callable[[], None] | None = None
    """Waits for batches that are still on their way to the device; see data/prefetch.py."""

    def ready(self) -> None:
        """Make the device wait for the batches, where they are on their way. Called before the window is run."""
        if self.arrival is not None:
            self.arrival()

    @property
    def units(self) -> int:
        """Units that this shard's part of the loss sums over."""
        return sum(m.units for m in self.micro_batches if m.weight)

    @property
    def samples(self) -> int:
        """Rows that this shard's auxiliary losses are weighed by."""
        return sum(m.samples for m in self.micro_batches if m.weight)


class Feed(Protocol):
    """Where the loop gets its windows."""

    @property
    def waited_s(self) -> float:
        """Seconds that the loop has waited for the loader, in total."""
        ...

    def epoch(self, epoch: int, start: int) -> Iterator[Window]:
        """Windows of one epoch from window `start` on."""
        ...

    def evaluation(self) -> Iterator[MicroBatch]:
        """Batches of an evaluation, each of the shard's rows once."""
        ...

    def close(self) -> None:
        """End loader processes."""
        ...


class RowFeed:
    """Windows over a map-style data set: window k is `order[k*B:(k+1)*B]`, whatever the world."""

    def __init__(self, loader: RowLoader, cut: Cut, seed: int, *, shuffle: bool, needs_count: bool) -> None:
        self._loader = loader
        self._source = loader.source
        self._cut = cut
        self._seed = seed
        self._shuffle = shuffle
        self._needs_count = needs_count
        self.waited_s = 0.0

    def epoch(self, epoch: int, start: int) -> Iterator[Window]:
        """Windows of one epoch; rows before `start` are never read."""
        order = self._source.epoch_order(self._seed, epoch, shuffle=self._shuffle)
        read = self._loader.read(
            self._piece(epoch, index, number, micro_rows)
            for index, window in enumerate(epoch_windows(order, self._cut, start), start)
            for number, micro_rows in enumerate(window)
        )
        for index, pieces in enumerate(epoch_windows(order, self._cut, start), start):
            began = time.perf_counter()
            micro_batches = [next(read)._replace(weight=piece.weight) for piece in pieces]
            self.waited_s += time.perf_counter() - began
            rows = sum(len(piece.rows) for piece in pieces if piece.weight)
            if self._needs_count:
                size = self._cut.global_batch
                micro_batches = self._countable(micro_batches, order[index * size : (index + 1) * size], epoch)
            yield Window(epoch, index, tuple(micro_batches), rows)

    def _piece(self, epoch: int, index: int, number: int, micro_rows: MicroRows) -> Piece:
        """What the loader reads for micro-batch `number` of window `index`."""
        return Piece((ROWS, self._seed, self._cut.shard, epoch, index, number), micro_rows.rows.tolist())

    def _countable(self, micro_batches: list[MicroBatch], window: Rows, epoch: int) -> list[MicroBatch]:
        """Leave out what counts nothing: a mean over nothing is 0/0, and weight 0 times NaN is NaN.

        A shard that has nothing left takes part, with weight 0, on some row of the window that counts.
        """
        counted = [m for m in micro_batches if m.units]
        if counted:
            return counted
        for row in window.tolist():
            stand_in = self._loader.read_one(Piece((ROWS, self._seed, epoch, row), [row]))
            if stand_in.units:
                return [stand_in._replace(weight=0)]
        return []

    def evaluation(self) -> Iterator[MicroBatch]:
        """Batches of an evaluation, each of the shard's rows once."""
        key = (EVALUATION, self._seed, self._cut.shard)
        assert self._source.num_rows is not None
        batches = evaluation_batches(self._source.num_rows, self._cut)
        return self._loader.read(Piece((*key, number), rows) for number, rows in enumerate(batches))

    def close(self) -> None:
        """End loader processes."""
        self._loader.close()
