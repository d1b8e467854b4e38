"""Windows over an IterableDataset: sharded by rank and loader process, or refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count, islice
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from drumline.data.loader import Counted, LoaderOptions, Source
from drumline.data.order import Cut, balanced
from drumline.data.windows import Window
from drumline.errors import ConfigError, DataError, DrumlineError
from drumline.parallel.strategy import MicroBatch, Task


@runtime_checkable
class Shardable(Protocol):
    """A stream that can be cut, as Hugging Face's iterable data sets can."""

    def shard(self, num_shards: int, index: int) -> Any:
        """The part `index` of `num_shards`; all parts together are the whole, each row once."""
        ...


class StridedStream(IterableDataset[Any]):
    """Makes a stream shardable by letting each shard read all of it and keep every n-th row.

    Only for streams that give the same rows in the same order in every process.
    """

    def __init__(self, rows: Any, num_shards: int = 1, index: int = 0) -> None:
        self._rows = rows
        self._num_shards = num_shards
        self._index = index

    def shard(self, num_shards: int, index: int) -> StridedStream:
        """Keep the rows whose number is `index` modulo `num_shards`."""
        return StridedStream(self._rows, num_shards, index)

    def __iter__(self) -> Iterator[Any]:
        """Go through this shard's rows."""
        return islice(iter(self._rows), self._index, None, self._num_shards)


class _MicroBatches(IterableDataset[Any]):
    """Yields counted micro-batches of one shard, cut in the loader's process."""

    def __init__(self, rows: Any, counted: Counted, cut: Cut) -> None:
        self._rows = rows
        self._counted = counted
        self._cut = cut

    def __iter__(self) -> Iterator[MicroBatch | DrumlineError]:
        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info is not None else (1, 0)
        num_shards = self._cut.num_shards * workers
        rows: Any = self._rows
        if num_shards > 1:
            rows = rows.shard(num_shards, self._cut.shard * workers + worker)
        stream = iter(rows)
        sizes = micro_sizes(self._cut)
        number = worker  # loader processes take turns, so this one makes every `workers`-th micro-batch
        while batch := list(islice(stream, sizes[number % len(sizes)])):
            yield self._counted(batch)
            number += workers


def micro_sizes(cut: Cut) -> list[int]:
    """Rows of each micro-batch of one shard's part of a full window; at least one of at least one row."""
    share = max(1, len(balanced(cut.global_batch, cut.num_shards)[cut.shard]))
    return [len(piece) for piece in balanced(share, -(-share // cut.micro_batch))]


class StreamFeed:
    """Windows over a stream. A shard that has run dry takes part with weight 0 until all have."""

    def __init__(self, source: Source, task: Task, options: LoaderOptions, cut: Cut) -> None:
        self._needs_count = bool(getattr(task, "needs_count", False))
        shards = cut.num_shards * max(1, options.num_workers)
        if shards > 1 and not isinstance(source.rows, Shardable):
            raise ConfigError(
                f"the stream {type(source.rows).__name__} cannot be cut into {shards} parts, so rows would repeat",
                "give it a method shard(num_shards, index), or wrap it in drumline.data.StridedStream if every process "
                "reads the same rows in the same order",
            )
        self._cut = cut
        self._rows = source.rows
        batches = _MicroBatches(source.rows, Counted(source.collate, task), cut)
        self._loader = DataLoader(
            batches,
            batch_size=None,
            num_workers=options.num_workers,
            pin_memory=options.pin_memory,
            prefetch_factor=options.prefetch_factor if options.num_workers else None,
        )
        self.waited_s = 0.0

    def epoch(self, epoch: int, start: int) -> Iterator[Window]:
        """Windows of one epoch, without end: the loop stops when no shard has rows left.

        Windows before `start` are read and dropped, since a stream has no other way to get there.
        """
        if hasattr(self._rows, "set_epoch"):
            self._rows.set_epoch(epoch)
        read = self._read()
        size = len(micro_sizes(self._cut))
        last: MicroBatch | None = None
        for index in count():
            began = time.perf_counter()
            micro_batches = list(islice(read, size))
            self.waited_s += time.perf_counter() - began
            rows = sum(m.samples for m in micro_batches)
            if self._needs_count:
                micro_batches = [m for m in micro_batches if m.units]
            if micro_batches:
                last = micro_batches[-1]
            elif last is None:
                raise DataError(
                    f"shard {self._cut.shard} of {self._cut.num_shards} of the stream has no rows to train on",
                    "use fewer processes or loader processes, or cut the stream more finely",
                )
            else:
                micro_batches = [last._replace(weight=0)]
            if index >= start:
                yield Window(epoch, index, tuple(micro_batches), rows)

    def _read(self) -> Iterator[MicroBatch]:
        for item in self._loader:
            if isinstance(item, DrumlineError):
                raise item
            yield item

    def evaluation(self) -> Iterator[MicroBatch]:
        """Micro-batches of an evaluation, each of the shard's rows once."""
        return self._read()

    def close(self) -> None:
        """Loader processes end with each pass."""
