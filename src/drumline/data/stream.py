"""Windows over an IterableDataset: sharded by rank and loader process, or refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain, count, islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from drumline.data.loader import Counted, LoaderOptions, Reader
from drumline.data.order import Cut, balanced
from drumline.data.seeds import STREAM, seed_streams
from drumline.data.source import Source
from drumline.data.windows import Window
from drumline.errors import ConfigError, DataError, DrumlineError
from drumline.parallel.strategy import MicroBatch, Task, needs_count


class StridedStream(IterableDataset[Any]):
    """Makes a stream shardable by letting each shard read all of it and keep every n-th row.

    Only for streams that give the same rows in the same order in every process.
    """

    def __init__(self, rows: Any, num_shards: int = 1, index: int = 0) -> None:
        self._rows = rows
        self._num_shards = num_shards
        self._index = index

    def shard(self, num_shards: int, index: int) -> StridedStream:
        """Keep those of this shard's rows whose number is `index` modulo `num_shards`."""
        return StridedStream(self._rows, self._num_shards * num_shards, self._index + self._num_shards * index)

    def set_epoch(self, epoch: int) -> None:
        """Tell the rows, where they want to know."""
        if hasattr(self._rows, "set_epoch"):
            self._rows.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        """Go through this shard's rows."""
        return islice(iter(self._rows), self._index, None, self._num_shards)


class _MicroBatches(IterableDataset[Any]):
    """Yields counted micro-batches of one shard, cut in the loader's process."""

    def __init__(self, rows: Any, counted: Counted, cut: Cut, seed: int) -> None:
        self._rows = rows
        self._counted = counted
        self._cut = cut
        self._seed = seed
        self.epoch = 0

    def __iter__(self) -> Iterator[MicroBatch | DrumlineError]:
        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info is not None else (1, 0)
        # A stream that shares itself out by loader process, as Hugging Face's do, would cut its part a second time.
        torch_worker._worker_info = None
        num_shards = self._cut.num_shards * workers
        rows: Any = self._rows
        if num_shards > 1:
            rows = rows.shard(num_shards, self._cut.shard * workers + worker)
        stream = iter(rows)
        sizes = micro_sizes(self._cut)
        number = worker  # loader processes take turns, so this one makes every `workers`-th micro-batch
        while True:
            # Anew each time, so that going through the stream again after a resume draws the same.
            seed_streams(STREAM, self._seed, self._cut.shard, self.epoch, number)
            batch = read_rows(stream, sizes[number % len(sizes)])
            if batch == []:
                return
            yield self._counted(batch)
            number += workers


def read_rows(stream: Iterator[Any], size: int) -> list[Any] | DrumlineError:
    """Read at most `size` rows; a drumline error comes back as a value, see Counted."""
    try:
        return list(islice(stream, size))
    except DrumlineError as error:
        return error


def micro_sizes(cut: Cut) -> list[int]:
    """Rows of each micro-batch of one shard's part of a full window."""
    share = len(balanced(cut.global_batch, cut.num_shards)[cut.shard])
    return [len(piece) for piece in balanced(share, -(-share // cut.micro_batch))]


class StreamFeed:
    """Windows over a stream. A shard that has run dry takes part with weight 0 until all have."""

    def __init__(self, source: Source, task: Task, options: LoaderOptions, cut: Cut, seed: int = 0) -> None:
        self._needs_count = needs_count(task)
        shards = cut.num_shards * max(1, options.num_workers)
        if shards > 1 and not source.can_be_cut:
            raise ConfigError(
                f"the stream {type(source.rows).__name__} cannot be cut into {shards} parts, so rows would repeat",
                "give it a method shard(num_shards, index), or wrap it in drumline.data.StridedStream if every process "
                "reads the same rows in the same order",
            )
        if cut.global_batch < cut.num_shards:
            raise ConfigError(
                f"an update of {cut.global_batch} samples of a stream cannot be shared by {cut.num_shards} processes",
                f"set train.global_batch to at least {cut.num_shards}, or use fewer processes",
            )
        self._cut = cut
        self._rows = source.rows
        self._batches = _MicroBatches(source.rows, Counted(source.collate, task), cut, seed)
        self._reader = Reader(self._batches, source, options, batch_size=None)
        self.waited_s = 0.0

    def epoch(self, epoch: int, start: int) -> Iterator[Window]:
        """Windows of one epoch, without end: the loop stops when no shard has rows left.

        Windows before `start` are read and dropped, since a stream has no other way to get there.
        """
        if hasattr(self._rows, "set_epoch"):
            self._rows.set_epoch(epoch)
        self._batches.epoch = epoch
        began = time.perf_counter()
        stand_in, read = self._stand_in(self._reader.read(), epoch)
        size = len(micro_sizes(self._cut))
        for index in count():
            micro_batches = list(islice(read, size))
            self.waited_s += time.perf_counter() - began
            rows = sum(m.samples for m in micro_batches)
            if self._needs_count:
                micro_batches = [m for m in micro_batches if m.units]
            if index >= start:
                yield Window(epoch, index, tuple(micro_batches) or (stand_in,), rows)
            began = time.perf_counter()

    def _stand_in(self, read: Iterator[MicroBatch], epoch: int) -> tuple[MicroBatch, Iterator[MicroBatch]]:
        """Read on to the first micro-batch that counts: what the shard takes part on where it has none of its own.

        Returned with all of them, the ones that were read here included.
        """
        ahead = []
        for micro_batch in read:
            ahead.append(micro_batch)
            if micro_batch.units or not self._needs_count:
                return micro_batch._replace(weight=0), chain(ahead, read)
        raise DataError(
            f"shard {self._cut.shard} of {self._cut.num_shards} of the stream has nothing to train on in epoch {epoch}",
            "use fewer processes, or cut the stream more finely; a stream must be able to start again each epoch",
        )

    def evaluation(self) -> Iterator[MicroBatch]:
        """Micro-batches of an evaluation, each of the shard's rows once."""
        return self._reader.read()

    def close(self) -> None:
        """End loader processes."""
        self._reader.close()
