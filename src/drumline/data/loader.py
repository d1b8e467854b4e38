"""Loaders that read given rows in a given order and hand back counted, checked micro-batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
    get_worker_info,
)

from drumline.errors import ConfigError, DrumlineError
from drumline.parallel.strategy import MicroBatch, Task

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Source:
    """What a user's data comes down to: rows, and how they become a batch."""

    rows: Dataset[Any]
    collate: Collate
    batch_size: int | None = None
    """Batch size of a DataLoader that was handed in."""
    num_workers: int | None = None
    shuffle: bool | None = None
    """None: nothing was said."""

    @property
    def is_stream(self) -> bool:
        """Whether rows can only be read one after the other."""
        return isinstance(self.rows, IterableDataset)

    @property
    def num_rows(self) -> int | None:
        """Rows of a map-style data set, None for a stream."""
        return None if self.is_stream else len(self.rows)  # type: ignore[arg-type]


def as_source(data: Any, collate: Collate | None = None) -> Source:
    """Take a data set or a DataLoader. Raises ConfigError for a loader whose sampler is somebody's own."""
    if not isinstance(data, DataLoader):
        if not hasattr(data, "__getitem__") and not isinstance(data, IterableDataset):
            raise ConfigError(
                f"a {type(data).__name__} is neither a data set nor a DataLoader",
                "give a torch Dataset (with __len__ and __getitem__), an IterableDataset or a DataLoader",
            )
        return Source(data, collate or default_collate)
    sampler = data.sampler
    own_batches = data.batch_sampler is not None and type(data.batch_sampler) is not BatchSampler
    random_rows = type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler)
    is_stream = isinstance(data.dataset, IterableDataset)
    if own_batches or not (is_stream or random_rows or type(sampler) is SequentialSampler) or data.batch_size is None:
        name = type(data.batch_sampler if own_batches else sampler).__name__
        raise ConfigError(
            f"the DataLoader brings its own sampler ({name}), and samples could not be shared out to all processes",
            "hand in the data set itself, or a DataLoader with shuffle=True or False; reorder the rows in the data set",
        )
    shuffle = None if is_stream else random_rows
    workers = data.num_workers or None
    return Source(data.dataset, collate or data.collate_fn, data.batch_size, workers, shuffle)


class Counted:
    """Collate function that also checks values and counts, on the CPU, in the loader's process.

    A drumline error is handed over as a value: torch would rebuild it from its text alone and lose its code.
    """

    def __init__(self, collate: Collate, task: Task) -> None:
        self._collate = collate
        self._task = task

    def __call__(self, rows: list[Any]) -> MicroBatch | DrumlineError:
        """Make one micro-batch of rows."""
        try:
            batch = self._collate(rows)
            self._task.check(batch)
            return MicroBatch(batch, self._task.count(batch), len(rows))
        except DrumlineError as error:
            return error


def seed_worker(worker: int, *, seed: int, shard: int) -> None:
    """Give each loader process of each shard its own random streams."""
    info = get_worker_info()
    epoch_seed = info.seed if info is not None else 0  # torch draws a new one each epoch
    key = np.random.SeedSequence([seed, shard, worker, epoch_seed]).generate_state(3)
    random.seed(int(key[0]))
    np.random.seed(int(key[1]))
    torch.manual_seed(int(key[2]))


@dataclass(frozen=True)
class LoaderOptions:
    """How rows are read."""

    num_workers: int = 0
    prefetch_factor: int = 4
    pin_memory: bool = False
    persistent_workers: bool = True
    seed: int = 0
    shard: int = 0


class RowBatches:
    """A batch sampler whose batches are set before each pass, so that loader processes can persist."""

    def __init__(self) -> None:
        self.batches: Iterable[list[int]] = ()

    def __iter__(self) -> Iterator[list[int]]:
        """Go through the batches that are set."""
        yield from self.batches


class RowLoader:
    """Reads batches of given rows from a map-style data set."""

    def __init__(self, source: Source, task: Task, options: LoaderOptions) -> None:
        self._sampler = RowBatches()
        self._counted = Counted(source.collate, task)
        self._rows = source.rows
        workers = options.num_workers
        self._generator = torch.Generator()
        self._loader = DataLoader(
            source.rows,
            batch_sampler=self._sampler,
            collate_fn=self._counted,
            num_workers=workers,
            pin_memory=options.pin_memory,
            prefetch_factor=options.prefetch_factor if workers else None,
            persistent_workers=options.persistent_workers and workers > 0,
            worker_init_fn=partial(seed_worker, seed=options.seed, shard=options.shard),
            generator=self._generator,
        )

    def read(self, batches: Iterable[list[int]], seed: int) -> Iterator[MicroBatch]:
        """Read these batches in this order. seed: of this pass's base seed for loader processes."""
        self._sampler.batches = batches
        self._generator.manual_seed(seed)
        for item in self._loader:
            if isinstance(item, DrumlineError):
                raise item
            yield item

    def read_one(self, row: int) -> MicroBatch:
        """Read a single row in this process."""
        item = self._counted([self._rows[row]])
        if isinstance(item, DrumlineError):
            raise item
        return item

    def close(self) -> None:
        """End the loader's processes."""
        iterator = getattr(self._loader, "_iterator", None)
        if iterator is not None:
            iterator._shutdown_workers()
            self._loader._iterator = None
