"""One planned batch through the model: smaller where memory runs out, in parts around a bad row or a deadly one."""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from drumline.engine.ending import with_causes
from drumline.engine.process import empty_cache
from drumline.engine.recover import finds_no_memory
from drumline.errors import ConfigError, DrumlineError
from drumline.infer.answers import Encoded, encode
from drumline.infer.ledger import Lease, Ledger
from drumline.infer.records import ERROR, Batch, Part, Predictor, Prepared

DIED = "a worker died each time at this row"
"""The error of a row at which nobody has survived."""

MEMORY = "out of memory"

LONGEST = 500
"""Characters of an exception's message that stand in a row's error."""

LOST = ("cuda error", "device-side assert", "hip error")
"""What errors say, in lower case, after which a process cannot use its GPU any more (CUDA programming guide, error
checking: such errors stay until the process ends)."""

logger = logging.getLogger("drumline")


class WorkerLost(DrumlineError):
    """The process can run no further batch; what it held is given back, and another process goes on."""

    code = "worker_lost"
    exit_status = 4


@dataclass(frozen=True)
class Failure:
    """Why a batch, or a part of one, did not go through."""

    reason: str
    """What a row gets as its error, if it was the only one."""
    is_memory: bool = False
    is_fatal: bool = False
    """Whether this process can run nothing more."""


@dataclass(frozen=True)
class Tries:
    """Runs leases, and notes in the ledger what did not go through whole, so that nobody has to find it again."""

    ledger: Ledger
    predictor: Predictor
    max_deaths: int
    """Workers that may have died at a whole batch before it is run in parts, and at a row alone before it is given up.
    Parts in between are made smaller after one: that costs nothing but time, and each death is a model loaded anew."""
    beat: Callable[[], None] = lambda: None
    """Called whenever something is about to be run."""

    def run(self, lease: Lease, prepared: Mapping[int, Prepared]) -> tuple[Lease, list[Encoded]]:
        """The lease as it stands after all, and an answer for each of its rows in their order; errors among them.

        Raises WorkerLost where the device is lost to this process, after noting at which part; and the predictor's
        ConfigError, which is no row's fault.
        """
        answers: dict[int, Encoded] = {}
        rows = lease.batch.rows
        if lease.parts is None and lease.starts >= self.max_deaths:
            lease = self._suspect(lease)
        while len(answers) < len(rows):
            parts = parts_of(lease)
            place = next(place for place, part in enumerate(parts) if part.rows[0] not in answers)
            part = parts[place]
            if part.problem is not None:
                answers[part.rows[0]] = encode({ERROR: part.problem})
                continue
            if part.starts >= (1 if len(part.rows) > 1 else self.max_deaths):
                lease = self._split(lease, place, Failure(DIED if len(part.rows) == 1 else "a worker died at them"))
                continue
            lease = self.ledger.begin(lease, place)
            self.beat()
            outcome = self._attempt(lease.batch, part, prepared)
            if isinstance(outcome, Failure):
                lease = self._split(lease, place, outcome)
                if outcome.is_fatal:
                    raise lost(outcome.reason)
            else:
                answers |= zip(part.rows, outcome, strict=True)
        return lease, [answers[row] for row in rows]

    def _attempt(self, batch: Batch, part: Part, prepared: Mapping[int, Prepared]) -> list[Encoded] | Failure:
        rows, width = shape_of(batch, part, prepared)
        try:
            answers = self.predictor.run(rows, width)
            if len(answers) != len(part.rows):
                raise ValueError(f"{len(answers)} answers for {len(part.rows)} rows")
            encoded = [
                encode(answer) for answer in answers
            ]  # here, where one that JSON refuses is found as any bad row
        except ConfigError:  # no row's fault: all would fail
            raise
        except Exception as error:
            failure = _failure_of(error, prepared[part.rows[0]].length)
            for each in with_causes(error):
                traceback.clear_frames(each.__traceback__)
        else:
            return encoded
        # The handler is left: nothing holds the dead batch's tensors any more.
        gc.collect()
        return replace(failure, is_fatal=failure.is_fatal or not frees_memory())

    def _suspect(self, lease: Lease) -> Lease:
        """From now on its parts' own starts count: it may be that workers which held it died at another batch."""
        halves = in_smaller(parts_of(lease)[0], Failure(DIED), lease.batch.rows)
        logger.warning(
            "batch %d: %d workers died while they held it; it goes on in parts", lease.batch.number, lease.starts
        )
        return self.ledger.split(lease, [replace(part, problem=None) for part in halves], "workers died")

    def _split(self, lease: Lease, place: int, failure: Failure) -> Lease:
        """Note that the part at this place is to be run as smaller ones."""
        parts = parts_of(lease)
        part = parts[place]
        smaller = in_smaller(part, failure, lease.batch.rows)
        reason = MEMORY if failure.is_memory and smaller[0].problem is None else failure.reason
        logger.warning(
            "batch %d, %d rows: %s; %s",
            *(lease.batch.number, len(part.rows), reason),
            f"row {part.rows[0]} gets this as its error" if smaller[0].problem else "it goes on in parts",
        )
        return self.ledger.split(lease, [*parts[:place], *smaller, *parts[place + 1 :]], reason)


def parts_of(lease: Lease) -> tuple[Part, ...]:
    """What a lease is run in: one part of all rows, where it has gone through whole so far."""
    return (Part(lease.batch.rows),) if lease.parts is None else lease.parts


def shape_of(batch: Batch, part: Part, prepared: Mapping[int, Prepared]) -> tuple[list[Prepared | None], int]:
    """Rows, None for those that are filled in for, and the width, with which a part is run."""
    start, end = part.shape or (0, len(batch.rows))
    rows, mine = batch.rows[start:end], frozenset(part.rows)
    width = batch.width if part.shape is None else max(prepared[row].length for row in rows)
    return [prepared[row] if row in mine else None for row in rows], width


def in_smaller(part: Part, failure: Failure, rows: tuple[int, ...]) -> list[Part]:
    """Pure: what a part of a batch of these rows is run in after a failure; a row that failed alone is not run.

    Where memory ran out the shape is halved, and the part with it; so which shape a row is run in depends on memory
    alone, not on who failed or died before.
    """
    start, end = part.shape or (0, len(rows))
    if failure.is_memory and end - start > 1:
        middle = start + (end - start) // 2
        halves = [(half, frozenset(rows[slice(*half)])) for half in ((start, middle), (middle, end))]
        found = [Part(tuple(row for row in part.rows if row in its), half) for half, its in halves]
        return [each for each in found if each.rows]
    if len(part.rows) > 1:
        middle = len(part.rows) // 2
        return [Part(each, part.shape) for each in (part.rows[:middle], part.rows[middle:])]
    return [replace(part, problem=failure.reason)]


def lost(reason: str) -> WorkerLost:
    """The error of a process whose GPU does not answer it any more."""
    fix = "start the run again, in a new process: it goes on, and the rows at fault are singled out"
    return WorkerLost(f"the GPU is lost to this process: {reason}", fix)


def frees_memory() -> bool:
    """Give back what the GPU's allocator holds unused; False where the GPU does not answer this process any more."""
    if not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
        empty_cache()
    except RuntimeError as error:
        logger.warning("the GPU does not answer any more: %s", str(error).partition("\n")[0])
        return False
    return True


def _failure_of(error: Exception, length: int) -> Failure:
    if isinstance(error, WorkerLost):  # by what it was caused
        cause = error.__cause__
        failure = _failure_of(cause, length) if isinstance(cause, Exception) else Failure(error.problem)
        return replace(failure, is_fatal=True)
    if finds_no_memory(error) or isinstance(error, MemoryError):
        return Failure(f"{MEMORY} even alone ({length:,} tokens)", is_memory=True)
    text = error.problem if isinstance(error, DrumlineError) else f"{type(error).__name__}: {error}"
    reason = text.strip().partition("\n")[0][:LONGEST].strip()
    return Failure(reason, is_fatal=any(sign in text.lower() for sign in LOST))
