"""The feeds of several shards of one process, read as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from drumline.data.windows import Feed, Window
from drumline.parallel.strategy import MicroBatch


class ShardFeeds:
    """One feed a shard, in the order of the shards, whose windows are put together.

    For streams, each of which is cut and read for itself; a RowFeed reads all shards of a process with one loader.
    """

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._feeds = feeds

    @property
    def waited_s(self) -> float:
        """Seconds that the loop has waited for the loaders, in total."""
        return sum(feed.waited_s for feed in self._feeds)

    def epoch(self, epoch: int, start: int) -> Iterator[Window]:
        """Windows of one epoch from window `start` on; a shard that only takes part is left out where another works."""
        for parts in zip(*(feed.epoch(epoch, start) for feed in self._feeds), strict=True):
            found = [each._replace(shard=i) for i, part in enumerate(parts) for each in part.micro_batches]
            micro_batches = [each for each in found if each.weight] or found[:1]
            rows = sum(part.rows for part in parts)
            yield Window(epoch, parts[0].index, tuple(micro_batches), rows)

    def evaluation(self) -> Iterator[MicroBatch]:
        """Batches of an evaluation, each of the shards' rows once; the shards take turns."""
        for turn in zip_longest(*(feed.evaluation() for feed in self._feeds)):
            for shard, micro_batch in enumerate(turn):
                if micro_batch is not None:
                    yield micro_batch._replace(shard=shard)

    def recut(self, micro_batch: int) -> None:
        """Cut the windows of all shards anew."""
        for feed in self._feeds:
            feed.recut(micro_batch)

    def close(self) -> None:
        """End loader processes."""
        for feed in self._feeds:
            feed.close()
