"""Windows over an IterableDataset: sharded by rank and loader process, or refused."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from itertools import chain, count, islice
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from drumline.data.loader import Counted, LoaderOptions, Reader
from drumline.data.order import Cut, balanced
from drumline.data.seeds import EVALUATION, STREAM, seed_streams
from drumline.data.source import Source, strided_from, without_first
from drumline.data.windows import Window
from drumline.errors import ConfigError, DataError, DrumlineError
from drumline.parallel.strategy import MicroBatch, Task, needs_count

logger = logging.getLogger("drumline")

EVALUATED = -1
"""In place of an epoch, for a pass that draws the same each time."""


class StridedStream(IterableDataset[Any]):
    """Makes a stream shardable by letting each shard read all of it and keep every n-th row.

    Only for streams that give the same rows in the same order in every process.
    """

    def __init__(self, rows: Any, num_shards: int = 1, index: int = 0) -> None:
        self._rows = rows
        self._num_shards = num_shards
        self._index = index

    def skip(self, count: int) -> Any:
        """Leave out the shard's first rows; NotImplemented where the rows themselves cannot be skipped."""
        begin, index = strided_from(count, self._num_shards, self._index)
        rest = without_first(self._rows, begin)
        return NotImplemented if rest is None else StridedStream(rest, self._num_shards, index)

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


class _RanDry(DrumlineError):
    """A part of the stream ended before the place from which it was to be read on.

    Which rows were in which window can then only be told by going through them from the beginning.
    """


class _MicroBatches(IterableDataset[Any]):
    """Yields counted micro-batches of one shard, cut in the loader's process."""

    def __init__(self, rows: Any, counted: Counted, cut: Cut, seed: int, num_workers: int) -> None:
        self._rows = rows
        self._counted = counted
        self._cut = cut
        self._seed = seed
        self._worker: int | None = None
        self._num_workers = num_workers
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._begin = torch.zeros((), dtype=torch.int64)
        self._pass_rows = torch.tensor(cut.micro_batch)
        if num_workers:  # loader processes that live on from epoch to epoch look here
            for value in (self._epoch, self._begin, self._pass_rows):
                value.share_memory_()

    def begin(self, epoch: int, first: int = 0) -> None:
        """Set the epoch of the next pass, EVALUATED for one of an evaluation, and the number of its first micro-batch.

        Numbers count those of all loader processes, as they are read.
        """
        self._epoch.fill_(epoch)
        self._begin.fill_(first)

    def recut(self, micro_batch: int) -> None:
        """Make micro-batches of at most so many rows, out of the same rows in the same turns."""
        self._pass_rows.fill_(micro_batch)

    def __iter__(self) -> Iterator[list[MicroBatch | DrumlineError]]:
        epoch, first = int(self._epoch), int(self._begin)
        sizes = micro_sizes(self._cut)
        # Loader processes take turns, so this one makes every `workers`-th micro-batch. The one that torch asks first
        # makes the first that is wanted, out of the part that it belongs to.
        workers = max(1, self._num_workers)
        worker = (self._number() + first) % workers
        before = range(worker, first, workers)
        stream, is_there = self._stream(epoch, worker, sum(sizes[number % len(sizes)] for number in before))
        shard = (self._seed, self._cut.shard)
        key = (EVALUATION, *shard) if epoch == EVALUATED else (STREAM, *shard, epoch)
        for number in count(worker + workers * len(before) if is_there else worker, workers):
            # Anew each time, so that going through the stream again after a resume draws the same.
            seed_streams(*key, number)
            size = sizes[number % len(sizes)]
            batch = read_on(stream, size)
            if isinstance(batch, DrumlineError):
                yield [batch]
                continue
            if first and number < first + workers and len(batch) < (size if number < first else 1):
                yield [_RanDry("the stream ended before the place it was left at", "read it from its beginning")]
                return
            if not batch:
                return
            if number >= first:
                yield self._cut_up(batch)

    def _stream(self, epoch: int, worker: int, skipped: int) -> tuple[Iterator[Any], bool]:
        """Rows of this loader process, and whether the first ones that are skipped are left out already."""
        rows, workers = told(self._rows, epoch), max(1, self._num_workers)
        num_shards = self._cut.num_shards * workers
        if num_shards > 1:
            # A part of Hugging Face's streams does not know of the epoch that the whole was told.
            rows = told(rows.shard(num_shards, self._cut.shard * workers + worker), epoch)
        rest = without_first(rows, skipped) if skipped else None
        return iter(rows if rest is None else told(rest, epoch)), rest is not None

    def _cut_up(self, rows: list[Any]) -> list[MicroBatch | DrumlineError]:
        """Micro-batches of what was read at once, sent together: which loader process has its turn stays as it was."""
        pieces = balanced(len(rows), -(-len(rows) // int(self._pass_rows)))
        return [self._counted(rows[piece.start : piece.stop]) for piece in pieces]

    def _number(self) -> int:
        """Number of this loader process.

        Taken at its first pass, and hidden from the stream: one that shares itself out by loader process, as Hugging
        Face's do, would cut its part a second time.
        """
        info = get_worker_info()
        if self._worker is None:
            self._worker = info.id if info is not None else 0
        torch_worker._worker_info = None
        return self._worker


def told(rows: Any, epoch: int) -> Any:
    """The rows, which now know of the epoch where they want to."""
    if epoch != EVALUATED and hasattr(rows, "set_epoch"):
        rows.set_epoch(epoch)
    return rows


def read_on(stream: Iterator[Any], size: int) -> list[Any] | DrumlineError:
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
    """Windows over a stream. A shard that has run dry takes part with weight 0 until all have.

    A window has at most the rows of the shard's share, and exactly those while none of the shard's loader processes has
    run dry; at the end of an epoch windows may be smaller, where parts of a stream differ in length.
    """

    def __init__(self, source: Source, task: Task, options: LoaderOptions, cut: Cut, seed: int = 0) -> None:
        self._needs_count = needs_count(task)
        workers = options.num_workers
        shards = cut.num_shards * max(1, workers)
        if shards > 1 and not source.can_be_cut:
            raise ConfigError(
                f"the stream {type(source.rows).__name__} cannot be cut into {shards} parts, so rows would repeat",
                "give it a method shard(num_shards, index), or wrap it in drumline.data.StridedStream if every process "
                "reads the same rows in the same order",
            )
        if cut.global_batch < cut.num_shards:
            raise ConfigError(
                f"an update of {cut.global_batch} samples of a stream cannot be divided into {cut.num_shards} shards",
                f"set train.global_batch to at least {cut.num_shards}, or use fewer processes",
            )
        self._cut = cut
        self._source = source
        self._num_workers = max(1, workers)
        counted = Counted(source.collate, task, shares=workers > 0)
        self._batches = _MicroBatches(source.rows, counted, cut, seed, workers)
        self._reader = Reader(self._batches, source, options, batch_size=None)
        self.waited_s = 0.0

    def epoch(self, epoch: int, start: int) -> Iterator[Window]:
        """Windows of one epoch, without end: the loop stops when no shard has rows left.

        Those before `start` are left out by the stream's own `skip`; one that has none is read up to there, in the
        loader processes alone.
        """
        began = time.perf_counter()
        stand_in, read, first = self._from(epoch, start)
        windows = in_shares(read, sum(micro_sizes(self._cut)))
        for index in count(first):
            micro_batches = next(windows, [])
            self.waited_s += time.perf_counter() - began
            rows = sum(m.samples for m in micro_batches)
            if self._needs_count:
                micro_batches = [m for m in micro_batches if m.units]
            if index >= start:
                yield Window(epoch, index, tuple(micro_batches) or (stand_in,), rows)
            began = time.perf_counter()

    def _from(self, epoch: int, start: int) -> tuple[MicroBatch, Iterator[MicroBatch], int]:
        """What a shard without rows takes part on, all micro-batches, and which window they begin with.

        That is the first one instead of `start` near the end of an epoch, see _RanDry.
        """
        if start:
            if without_first(self._source.rows, 0) is None:
                logger.warning(
                    "the stream %s has no skip(count): %d updates of epoch %d are read again, to get to its place",
                    *(type(self._source.rows).__name__, start, epoch),
                )
            try:
                return *self._stand_in(self._read(epoch, start), epoch, _RanDry), start
            except _RanDry:
                pass  # what is left is less than a window for each, or nothing
        return *self._stand_in(self._read(epoch, 0), epoch, DataError), 0

    def _read(self, epoch: int, start: int) -> Iterator[MicroBatch]:
        """Micro-batches from a window on. Raises _RanDry before any where a loader process has none there."""
        self._batches.begin(epoch, start * len(micro_sizes(self._cut)))
        groups = self._reader.groups()
        ahead = list(islice(groups, self._num_workers if start else 0))
        return chain.from_iterable(chain(ahead, groups))

    def _stand_in(
        self, read: Iterator[MicroBatch], epoch: int, error: type[DrumlineError]
    ) -> tuple[MicroBatch, Iterator[MicroBatch]]:
        """Read on to the first micro-batch that counts: what the shard takes part on where it has none of its own.

        Returned with all of them, the ones that were read here included. Raises `error` where none counts.
        """
        ahead = []
        for micro_batch in read:
            ahead.append(micro_batch)
            if micro_batch.units or not self._needs_count:
                return micro_batch._replace(weight=0), chain(ahead, read)
        raise error(
            f"shard {self._cut.shard} of {self._cut.num_shards} of the stream has nothing to train on in epoch {epoch}",
            "use fewer processes, or cut the stream more finely; a stream must be able to start again each epoch",
        )

    def evaluation(self) -> Iterator[MicroBatch]:
        """Micro-batches of an evaluation, each of the shard's rows once."""
        self._batches.begin(EVALUATED)
        return self._reader.read()

    def recut(self, micro_batch: int) -> None:
        """Cut windows into micro-batches of at most so many samples; what was read ahead is read again."""
        self._batches.recut(micro_batch)

    def close(self) -> None:
        """End loader processes."""
        self._reader.close()


def in_shares(micro_batches: Iterable[MicroBatch], share: int) -> Iterator[list[MicroBatch]]:
    """Cut a stream of micro-batches into windows of at most `share` rows, in order.

    By rows and not by number: once a loader process has run dry, the others' micro-batches no longer come in the order
    that their sizes were cut for.
    """
    window: list[MicroBatch] = []
    rows = 0
    for micro_batch in micro_batches:
        if window and rows + micro_batch.samples > share:
            yield window
            window, rows = [], 0
        window.append(micro_batch)
        rows += micro_batch.samples
        if rows == share:  # at once: the next one may be long in coming
            yield window
            window, rows = [], 0
    if window:
        yield window
