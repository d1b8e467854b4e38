"""The feed: update windows of a process's shards, in order, from a map-style data set or a stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple, Protocol

from drumline.data.loader import Piece, RowLoader
from drumline.data.order import Cut, MicroRows, Rows, epoch_windows, evaluation_batches
from drumline.data.seeds import EVALUATION, ROWS
from drumline.parallel.strategy import MicroBatch


@dataclass(frozen=True)
class Window:
    """The part of one update that falls to this process's shards; each micro-batch says to which of them."""

    epoch: int
    index: int
    """Number of the window in its epoch."""
    micro_batches: tuple[MicroBatch, ...]
    """Empty where no row of the whole window has anything to count: such a window is passed over by all."""

    rows: int
    """Rows of these shards that it stands for; 0 where they only take part."""

    arrival: Callable[[], None] | None = None
    """Waits for batches that are still on their way to the device; see data/prefetch.py."""

    def ready(self) -> None:
        """Make the device wait for the batches, where they are on their way. Called before the window is run."""
        if self.arrival is not None:
            self.arrival()

    @property
    def units(self) -> int:
        """Units that these shards' part of the loss sums over."""
        return sum(m.units for m in self.micro_batches if m.weight)

    @property
    def samples(self) -> int:
        """Rows that these shards' auxiliary losses are weighed by."""
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
        """Batches of an evaluation, each of the shards' rows once; several shards take turns."""
        ...

    def recut(self, micro_batch: int) -> None:
        """Cut windows into micro-batches of at most so many samples from the next `epoch` on; the same windows."""
        ...

    def close(self) -> None:
        """End loader processes."""
        ...


class Place(NamedTuple):
    """What one micro-batch of a window is: the process's shard, its number there, and its rows."""

    shard: int
    number: int
    rows: MicroRows


class RowFeed:
    """Windows over a map-style data set: window k is `order[k*B:(k+1)*B]`, whatever the world."""

    def __init__(
        self, loader: RowLoader, cut: Cut, seed: int, *, shuffle: bool, needs_count: bool, num_local: int = 1
    ) -> None:
        """cut: of this process's first shard; num_local: how many shards it has, that one and those after it."""
        self._loader = loader
        self._source = loader.source
        self._cut = cut
        self._cuts = [cut._replace(shard=cut.shard + i) for i in range(num_local)]
        self._seed = seed
        self._shuffle = shuffle
        self._needs_count = needs_count
        self.waited_s = 0.0

    def epoch(self, epoch: int, start: int) -> Iterator[Window]:
        """Windows of one epoch; rows before `start` are never read."""
        order = self._source.epoch_order(self._seed, epoch, shuffle=self._shuffle)
        read = self._loader.read(
            self._piece(epoch, index, place)
            for index, places in enumerate(self._windows(order, start), start)
            for place in places
        )
        for index, places in enumerate(self._windows(order, start), start):
            began = time.perf_counter()
            micro_batches = [next(read)._replace(weight=rows.weight, shard=shard) for shard, _, rows in places]
            self.waited_s += time.perf_counter() - began
            num_rows = sum(len(rows.rows) for _, _, rows in places if rows.weight)
            if self._needs_count:
                size = self._cut.global_batch
                micro_batches = self._countable(micro_batches, order[index * size : (index + 1) * size], epoch)
            yield Window(epoch, index, tuple(micro_batches), num_rows)

    def _windows(self, order: Rows, start: int) -> Iterator[list[Place]]:
        """What this process reads of each window from `start` on.

        A shard without rows takes part only where the process has none at all: the other processes wait for that.
        """
        for window in zip(*(epoch_windows(order, cut, start) for cut in self._cuts), strict=True):
            places = [Place(i, n, rows) for i, pieces in enumerate(window) for n, rows in enumerate(pieces)]
            yield [place for place in places if place.rows.weight] or places[:1]

    def _piece(self, epoch: int, index: int, place: Place) -> Piece:
        """What the loader reads for one micro-batch of window `index`."""
        shard = self._cuts[place.shard].shard
        return Piece((ROWS, self._seed, shard, epoch, index, place.number), place.rows.rows.tolist())

    def _countable(self, micro_batches: list[MicroBatch], window: Rows, epoch: int) -> list[MicroBatch]:
        """Leave out what counts nothing: a mean over nothing is 0/0, and weight 0 times NaN is NaN.

        A process that has nothing left takes part, with weight 0, on some row of the window that counts.
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
        """Batches of an evaluation, each of the shards' rows once; the shards take turns."""
        assert self._source.num_rows is not None
        batches = [evaluation_batches(self._source.num_rows, cut) for cut in self._cuts]
        places = [
            (shard, number, rows)
            for number, turn in enumerate(zip_longest(*batches))
            for shard, rows in enumerate(turn)
            if rows is not None
        ]
        read = self._loader.read(
            Piece((EVALUATION, self._seed, self._cuts[shard].shard, number), rows) for shard, number, rows in places
        )
        return (micro_batch._replace(shard=shard) for micro_batch, (shard, _, _) in zip(read, places, strict=True))

    def recut(self, micro_batch: int) -> None:
        """Cut windows into micro-batches of at most so many samples from the next `epoch` on; the same windows."""
        self._cut = self._cut._replace(micro_batch=micro_batch)
        self._cuts = [cut._replace(micro_batch=micro_batch) for cut in self._cuts]

    def close(self) -> None:
        """End loader processes."""
        self._loader.close()
