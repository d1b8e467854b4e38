"""How many tokens a batch may have: as set, or what the GPU's memory is found to hold by trial."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from drumline.config.inference import BatchingConfig
from drumline.engine.process import empty_cache
from drumline.engine.recover import finds_no_memory
from drumline.infer.records import Predictor, Prepared
from drumline.infer.tries import WorkerLost
from drumline.rundir import read_json, write_json

ON_CPU = 4096
"""Tokens: what keeps two cores busy without a batch that takes minutes."""

WITHOUT_TRIAL = 8192
"""Tokens: where workers died at the trial, or a row failed in it."""

SHARE = 0.85
"""Of the free memory: what is left over is for fragments and for shapes that need more than those tried."""

FIRST, SECOND = 2, 8
"""Rows of the two trials from which the need of a larger batch is foretold."""

MOST_ATTEMPTS = 2
"""Workers that may die at the trial before there is none."""

logger = logging.getLogger("drumline")


@runtime_checkable
class Rehearses(Protocol):
    """What a predictor may have beside: a quick way to need as much memory as a batch takes, without its answers."""

    def rehearse(self, rows: Sequence[Prepared], width: int) -> None:
        """Take at least the memory at its fullest that `run` of these rows takes. Raises what `run` raises."""


class Memory(Protocol):
    """Of the devices that the predictor runs on; bytes."""

    def free(self) -> list[int]:
        """What is left for more tensors on each, with nothing running."""
        ...

    def peaks_of(self, action: Callable[[], object]) -> list[int] | None:
        """What the action takes at most on each beside what was there before; None: more than there is."""
        ...


class GpuMemory:
    """As torch's allocator and the driver count it, on all GPUs on which this process holds something."""

    def __init__(self) -> None:
        held = [number for number in range(torch.cuda.device_count()) if torch.cuda.memory_allocated(number)]
        self._devices = held or [torch.cuda.current_device()]

    def free(self) -> list[int]:
        """What the driver has, and what the allocator holds unused."""
        empty_cache()
        return [
            int(torch.cuda.mem_get_info(device)[0])
            + torch.cuda.memory_reserved(device)
            - torch.cuda.memory_allocated(device)
            for device in self._devices
        ]

    def peaks_of(self, action: Callable[[], object]) -> list[int] | None:
        """By the allocator's own peaks, begun anew."""
        empty_cache()
        for device in self._devices:
            torch.cuda.reset_peak_memory_stats(device)
        before = [torch.cuda.memory_allocated(device) for device in self._devices]
        try:
            action()
        except WorkerLost:  # whatever it was caused by
            raise
        except Exception as error:
            if not finds_no_memory(error):
                raise
        else:
            for device in self._devices:
                torch.cuda.synchronize(device)
            peaks = [torch.cuda.max_memory_allocated(device) for device in self._devices]
            return [peak - held for peak, held in zip(peaks, before, strict=True)]
        empty_cache()
        return None


def find_budget(
    predictor: Predictor, prepared: Sequence[Prepared], batching: BatchingConfig, device: torch.device
) -> int:
    """Tokens of a batch at most. The predictor must have settled already; on a GPU batches of these rows are run.

    Those without payload are not run, and only count.

    Raises what the predictor raises but for lack of memory.
    """
    if batching.tokens != "auto":
        return batching.tokens
    if device.type != "cuda":
        return ON_CPU
    if all(row.payload is None for row in prepared):
        return WITHOUT_TRIAL
    return by_trial(predictor, prepared, GpuMemory(), batching.rows)


def by_trial(predictor: Predictor, prepared: Sequence[Prepared], memory: Memory, max_rows: int = 10**6) -> int:
    """What two small batches of the largest rows foretell, proven by one more; less where that one does not fit."""
    whole = (row for row in prepared if row.payload is not None)
    largest = sorted(whole, key=lambda row: (-row.size, row.number))

    def run(num_rows: int) -> list[int] | None:
        # Where there are too few rows some are run twice: only their memory matters.
        rows = [largest[place % len(largest)] for place in range(num_rows)]
        width = max(row.length for row in rows)
        if isinstance(predictor, Rehearses):
            return memory.peaks_of(lambda: predictor.rehearse(rows, width))
        return memory.peaks_of(lambda: predictor.run(rows, width))

    size = max(1, largest[0].size)
    run(1)  # workspaces that stay are made with the first batch
    free = memory.free()
    first, second = run(FIRST), run(SECOND)
    if first is None or second is None:
        return size if first is None else FIRST * size
    most = min(
        foretell((FIRST, few), (SECOND, many), SHARE * room)
        for few, many, room in zip(first, second, free, strict=True)
    )
    # Larger than all rows together, or than the most rows that are allowed, no batch will be.
    most = min(most, max_rows, max(SECOND, sum(row.size for row in prepared) // size))
    while most > SECOND and run(most) is None:
        most //= 2
    return rounded(most * size)


def foretell(first: tuple[int, int], second: tuple[int, int], allowed: float) -> int:
    """Pure: rows that take the allowed bytes at most, on the line through two pairs of rows and bytes."""
    (few, small), (many, large) = first, second
    a_row = max(1.0, (large - small) / (many - few), large / many / 8)
    return max(1, int((allowed - (large - a_row * many)) / a_row))


def rounded(tokens: int) -> int:
    """Pure: down to a number with three leading bits, so that a few bytes more or less free give the same batches."""
    shift = max(0, tokens.bit_length() - 3)
    return max(1, tokens >> shift << shift)


def may_try(record: Path) -> bool:
    """Note in a file that a trial begins; False once MOST_ATTEMPTS did, of which none can have ended.

    For it may be a row at which workers die, and then they would all die at their start.
    """
    attempts = read_json(record)["attempts"] if record.is_file() else 0
    if attempts >= MOST_ATTEMPTS:
        return False
    write_json(record, {"attempts": attempts + 1})
    return True
