"""Loaders that read given rows in a given order and hand back counted, checked micro-batches."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data._utils import signal_handling as torch_signals
from torch.utils.data._utils import worker as torch_worker

from drumline.data.limits import Sharing
from drumline.data.loader_signals import leave_signals_to_rank
from drumline.data.seeds import seed_streams
from drumline.data.sharing import begin_sharing, explained, share, unshared
from drumline.data.source import Collate, Source
from drumline.errors import DrumlineError
from drumline.parallel.strategy import MicroBatch, Task

END_S = 0.2
"""What a loader process that was killed may take to have an exit code, after any error that may come of it."""

BROKEN_S = 5.0
"""The same after its connection has broken, which nothing but its end does."""


class Piece(NamedTuple):
    """The rows of one micro-batch, and the key of the random streams that they are read and collated with."""

    key: tuple[int, ...]
    rows: list[int]


class KeyedRows(Dataset[Any]):
    """A data set read a piece at a time, so that augmentation and random collating depend on the piece alone.

    Neither the number of loader processes nor where a run was resumed can be told from the batches.
    """

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __getitems__(self, piece: Piece) -> list[Any] | DrumlineError:
        """Read the rows of one piece; torch's fetcher calls this with what the sampler gave."""
        seed_streams(*piece.key)
        try:
            return read_rows(self._rows, piece.rows)
        except DrumlineError as error:
            return error


def read_rows(dataset: Any, rows: Sequence[int]) -> list[Any]:
    """Read rows of a map-style data set, at once where it can; what it raises gets a note that names the row."""
    row: Any = None
    try:
        at_once = getattr(dataset, "__getitems__", None)
        if at_once is not None:
            return list(at_once(rows))
        found = []
        for row in rows:
            found.append(dataset[row])
        return found
    except Exception as error:
        place = f"rows {', '.join(map(str, rows[:8]))}{', ...' * (len(rows) > 8)}" if row is None else f"row {row}"
        error.add_note(f"raised while reading {place} of the data set")
        raise


class Counted:
    """Collate function that also checks values and counts, on the CPU, in the loader's process.

    A drumline error is handed over as a value: torch would rebuild it from its text alone and lose its code.
    """

    def __init__(self, collate: Collate, task: Task, *, shares: bool = False) -> None:
        self._collate = collate
        self._task = task
        self._shares = shares
        """Whether this runs in a loader process, whose batches are sent in shared memory."""

    def __call__(self, rows: list[Any] | DrumlineError) -> MicroBatch | DrumlineError:
        """Make one micro-batch of rows."""
        if isinstance(rows, DrumlineError):
            return rows
        try:
            batch = self._collate(rows)
            self._task.check(batch)
            units = self._task.count(batch)
            if self._shares:
                share(batch)
            return MicroBatch(batch, units, len(rows))
        except DrumlineError as error:
            return error


class StartWorker:
    """What a loader process does first: the user's own worker_init_fn, which must find the user's own data set."""

    def __init__(self, source: Source, sharing: Sharing) -> None:
        self._rows = source.rows
        self._own = source.worker_init
        self._sharing = sharing

    def __call__(self, worker: int) -> None:
        """Start loader process number `worker`."""
        leave_signals_to_rank()
        begin_sharing(self._sharing)
        info = get_worker_info()
        assert info is not None
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=self._rows
        )
        if self._own is not None:
            self._own(worker)


@dataclass(frozen=True)
class LoaderOptions:
    """How rows are read."""

    num_workers: int = 0
    prefetch_factor: int = 4
    pin_memory: bool = False
    persistent_workers: bool = True
    sharing: Sharing = "file_descriptor"


def start_method(source: Source) -> Any:
    """How loader processes start: as the user's DataLoader says, else by fork where that is the custom (Linux).

    Stated, because Python 3.14 no longer forks by default: scripts without `if __name__ == "__main__"` would train
    again in each loader process, and data sets that do not pickle would stop working. A forked process cannot use CUDA,
    which rows are not read with.
    """
    forks = sys.platform == "linux" and "fork" in multiprocessing.get_all_start_methods()
    return source.start_method or ("fork" if forks else None)


class Reader:
    """Passes over a DataLoader, whose processes can be ended at any time."""

    def __init__(self, dataset: Dataset[Any], source: Source, options: LoaderOptions, **settings: Any) -> None:
        workers = options.num_workers
        self._pass: Any = None
        self._options = options
        self._loader: DataLoader[Any] = DataLoader(
            dataset,
            num_workers=workers,
            pin_memory=options.pin_memory,
            prefetch_factor=options.prefetch_factor if workers else None,
            persistent_workers=options.persistent_workers and workers > 0,
            multiprocessing_context=start_method(source) if workers else None,
            worker_init_fn=StartWorker(source, options.sharing),
            generator=torch.Generator(),  # else each pass would draw from the process's stream
            **settings,
        )

    def read(self) -> Iterator[MicroBatch]:
        """Go through the micro-batches of one pass; nothing of them lies in shared memory.

        Raises the drumline error that a loader process came to, and DataError where one finds no shared memory or file
        handles, or is killed; any other error of the data set's own as it is.
        """
        for group in self.groups():
            yield from group

    def groups(self) -> Iterator[Iterator[MicroBatch]]:
        """The same, those together that a loader process sent at once. Raises at each, as `read` does."""
        for sent in self.items():
            group = sent if isinstance(sent, list) else [sent]
            for item in group:
                if isinstance(item, DrumlineError):
                    raise item
            yield map(unshared, group) if self._options.num_workers else iter(group)

    def items(self) -> Iterator[Any]:
        """Go through what loader processes send, as it is; raises as `read` does for what torch reports."""
        try:
            self._pass = iter(self._loader)
            yield from self._pass
        except (RuntimeError, OSError, EOFError) as error:
            reason = None
            if self._options.num_workers:
                self._watch_no_more()
                reason = explained(self._killed(error) or error)
            if reason is None:
                raise
            raise reason from error

    def _watch_no_more(self) -> None:
        """Have torch's signal handler raise no more of loader processes that end, in the middle of whatever comes."""
        running = self._pass
        if getattr(running, "_worker_pids_set", False):
            torch_signals._remove_worker_pids(id(running))
            running._worker_pids_set = False

    def _killed(self, error: Exception) -> RuntimeError | None:
        """What torch says of a loader process that a signal has ended, where a consequence of it was met first."""
        workers = getattr(self._pass, "_workers", ())
        limit = time.monotonic() + (BROKEN_S if isinstance(error, ConnectionError | EOFError) else END_S)
        while True:
            # Looked at, not joined: its files close before it has an exit code, and join would then wait to no end.
            codes = [worker.exitcode for worker in workers]
            for worker, code in zip(workers, codes, strict=True):
                if code is not None and code < 0:
                    name = signal.strsignal(-code)
                    return RuntimeError(f"DataLoader worker (pid {worker.pid}) is killed by signal: {name}.")
            if None not in codes or time.monotonic() > limit:
                return None
            time.sleep(0.01)

    def close(self) -> None:
        """End the loader's processes, also in the middle of a pass; closing twice is allowed."""
        self._watch_no_more()  # else the end of one that was killed may be told in the middle of this
        if hasattr(self._pass, "_shutdown_workers"):
            self._pass._shutdown_workers()
        self._pass = self._loader._iterator = None


class Pieces:
    """A batch sampler whose pieces are set before each pass, so that loader processes can persist."""

    def __init__(self) -> None:
        self.pieces: Iterable[Piece] = ()

    def __iter__(self) -> Iterator[Piece]:
        """Go through the pieces that are set."""
        yield from self.pieces


class RowLoader:
    """Reads pieces of a map-style data set."""

    def __init__(self, source: Source, task: Task, options: LoaderOptions) -> None:
        self.source = source
        self._sampler = Pieces()
        self._rows = KeyedRows(source.rows)
        self._here = Counted(source.collate, task)
        self._reader = Reader(
            self._rows,
            source,
            options,
            batch_sampler=self._sampler,
            collate_fn=Counted(source.collate, task, shares=options.num_workers > 0),
        )

    def read(self, pieces: Iterable[Piece]) -> Iterator[MicroBatch]:
        """Read these pieces in this order."""
        self._sampler.pieces = pieces
        return self._reader.read()

    def read_one(self, piece: Piece) -> MicroBatch:
        """Read a single piece in this process."""
        item = self._here(self._rows.__getitems__(piece))
        if isinstance(item, DrumlineError):
            raise item
        return item

    def close(self) -> None:
        """End the loader's processes."""
        self._reader.close()
