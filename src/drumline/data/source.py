"""What a user hands in as data, brought to one form: rows, and how they become a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from drumline.data.order import Rows, epoch_order
from drumline.errors import ConfigError

logger = logging.getLogger("drumline")

Collate = Callable[[list[Any]], Any]


@runtime_checkable
class Shardable(Protocol):
    """A stream that can be cut, as Hugging Face's iterable data sets can."""

    def shard(self, num_shards: int, index: int) -> Any:
        """The part `index` of `num_shards`; all parts together are the whole, each row once."""
        ...


def without_first(rows: Any, count: int) -> Any | None:
    """A stream without its first `count` rows, by its own `skip`; None: it has none, and can only be read.

    Streams that go over others answer NotImplemented where those cannot. Raises ConfigError for a skip that gives
    nothing: it has moved the stream itself, which would then be moved twice.
    """
    skip = getattr(rows, "skip", None)
    rest = skip(count) if callable(skip) else NotImplemented
    if rest is None:
        raise ConfigError(
            f"skip({count}) of the stream {type(rows).__name__} gave nothing",
            "have it return the stream without its first rows, and leave itself as it is",
        )
    return None if rest is NotImplemented else rest


def strided_from(count: int, step: int, index: int) -> tuple[int, int]:
    """Where to go on behind the first `count` of every `step`-th row: how many rows to skip, and the index from there.

    That is right behind the last one, so that as many rows are read before the next as in going through all of them: it
    then draws the same.
    """
    return ((count - 1) * step + index + 1, step - 1) if count else (0, index)


class ShardedStream(IterableDataset[Any]):
    """A stream that is cut by its own shards while there are enough, as the files of a Hugging Face data set.

    For more parts than it has shards, each part reads all rows and keeps every n-th.
    """

    def __init__(self, rows: Any, num_parts: int = 1, index: int = 0) -> None:
        self._rows = rows
        self._num_parts = num_parts
        self._index = index

    def shard(self, num_shards: int, index: int) -> ShardedStream:
        """The part `index` of `num_shards`."""
        if self._num_parts == 1 and num_shards <= self._rows.num_shards:
            return ShardedStream(self._rows.shard(num_shards, index))
        return ShardedStream(self._rows, self._num_parts * num_shards, self._index + self._num_parts * index)

    def skip(self, count: int) -> Any:
        """Leave out the part's first rows; NotImplemented where the rows themselves cannot be skipped."""
        begin, index = strided_from(count, self._num_parts, self._index)
        rest = without_first(self._rows, begin)
        return NotImplemented if rest is None else ShardedStream(rest, self._num_parts, index)

    def set_epoch(self, epoch: int) -> None:
        """Tell the rows."""
        if hasattr(self._rows, "set_epoch"):
            self._rows.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._rows), self._index, None, self._num_parts)


@dataclass(frozen=True)
class Source:
    """What a user's data comes down to. Of a DataLoader that was handed in: what it says beyond rows and collate."""

    rows: Dataset[Any]
    collate: Collate
    batch_size: int | None = None
    num_workers: int | None = None
    shuffle: bool | None = None
    """None: nothing was said."""
    worker_init: Callable[[int], None] | None = None
    """Called first in each loader process."""
    start_method: Any = None
    """How loader processes are started: a name or a context of multiprocessing; None: nothing was said."""

    @property
    def is_stream(self) -> bool:
        """Whether rows can only be read one after the other."""
        return isinstance(self.rows, IterableDataset)

    @property
    def can_be_cut(self) -> bool:
        """Whether several processes can read a part each."""
        return not self.is_stream or isinstance(self.rows, Shardable)

    @property
    def num_rows(self) -> int | None:
        """Rows of a map-style data set, None for a stream."""
        return None if self.is_stream else len(self.rows)  # type: ignore[arg-type]

    @property
    def rows_per_epoch(self) -> int | None:
        """Rows of one epoch, of which a data set with weights may have more or fewer than it holds; None: a stream."""
        own = getattr(self.rows, "rows_per_epoch", None)
        return self.num_rows if self.is_stream or own is None else int(own)

    def epoch_order(self, seed: int, epoch: int, *, shuffle: bool) -> Rows:
        """The rows of one epoch in their order, int64 [rows_per_epoch]; of a map-style data set only."""
        own = getattr(self.rows, "epoch_order", None)
        if own is None:
            assert self.num_rows is not None
            return epoch_order(self.num_rows, seed, epoch, shuffle=shuffle)
        return own(seed, epoch, shuffle=shuffle)  # type: ignore[no-any-return]


def as_source(data: Any, collate: Collate | None = None) -> Source:
    """Take a data set or a DataLoader. Raises ConfigError for a loader whose batches or order are somebody's own."""
    if isinstance(data, DataLoader):
        return _of_loader(data, collate or data.collate_fn)
    if isinstance(data, Mapping):
        names = ", ".join(map(str, list(data)[:5]))
        raise ConfigError(
            f"a {type(data).__name__} holds values by name ({names}), where rows by number are wanted",
            "give one of its values, as data['train']; a dict of columns goes through datasets.Dataset.from_dict",
        )
    if isinstance(data, IterableDataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return Source(_cuttable(data), collate or default_collate)
    raise ConfigError(
        f"a {type(data).__name__} is neither a data set nor a DataLoader",
        "give a torch Dataset (with __len__ and __getitem__), an IterableDataset or a DataLoader",
    )


def _of_loader(data: DataLoader[Any], collate: Collate) -> Source:
    batches, shuffle = data.batch_sampler, None
    if batches is None:
        raise ConfigError(
            "the DataLoader has batch_size=None, so its data set makes the batches, and they could not be shared out",
            "hand in a data set of single samples, and the batch size as train.global_batch",
        )
    if type(batches) is not BatchSampler:
        raise _own_order(batches)
    sampler: Any = batches.sampler
    if not isinstance(data.dataset, IterableDataset):
        shuffle = type(sampler) is RandomSampler and not sampler.replacement
        if not shuffle and type(sampler) is not SequentialSampler:
            raise _own_order(sampler)
        if len(sampler) != len(data.dataset):  # type: ignore[arg-type]
            raise _own_order(sampler)
    if batches.drop_last:
        logger.warning("drop_last of the DataLoader has no effect: each sample counts, the last update is the smaller")
    rows = _cuttable(data.dataset)
    return Source(
        rows,
        collate,
        batches.batch_size,
        data.num_workers or None,
        shuffle,
        data.worker_init_fn,
        data.multiprocessing_context,
    )


def _cuttable(rows: Any) -> Any:
    """A stream made of shards fails in parts beyond their number, and only when it is read."""
    return (
        ShardedStream(rows)
        if isinstance(rows, IterableDataset) and hasattr(rows, "num_shards") and isinstance(rows, Shardable)
        else rows
    )


def _own_order(sampler: object) -> ConfigError:
    name = type(sampler).__name__
    name += " with replacement" if getattr(sampler, "replacement", False) else ""
    return ConfigError(
        f"the DataLoader brings its own sampler ({name}), and samples could not be shared out to all processes",
        "hand in the data set itself, or a DataLoader with shuffle=True or False; choose or reorder rows in the data "
        "set (torch.utils.data.Subset)",
    )
