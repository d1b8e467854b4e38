"""Passes over all of the evaluation data, or of data to predict on, that a stop or a full memory may cut short."""

from __future__ import annotations

import gc
import logging
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from drumline.engine.ending import with_causes
from drumline.engine.lockstep import in_step
from drumline.engine.process import empty_cache
from drumline.engine.recover import OUT_OF_MEMORY, finds_no_memory, halved, heard, recover, stand_by
from drumline.engine.run import Run
from drumline.errors import OutOfMemory
from drumline.parallel.side_channel import Recovery
from drumline.parallel.strategy import MicroBatch

logger = logging.getLogger("drumline")

LOOK_S = 0.25
"""Between two looks at whether another rank has ended early."""
EARLY = "early"
"""What a rank calls that does."""


class Passes(NamedTuple):
    """What is made of some data, without gradient."""

    phase: str
    """evaluation or prediction."""
    rows: int
    """Samples of a batch, at most; for where memory runs out before the first one is there."""
    batches: Callable[[], Iterable[MicroBatch]]
    """This rank's, begun anew at each call."""
    inside: Callable[[], AbstractContextManager[Any]]
    """The context of all passes."""
    function: Callable[[MicroBatch], None]
    """Runs one batch and keeps what comes of it."""
    result: Callable[[], Any]
    """What has come of all of this rank's, as JSON."""
    yields: bool = False
    """Whether they are given up where a rank wants to stop."""


class Ended(NamedTuple):
    """How the passes ended, agreed by all ranks."""

    results: list[Any] | None
    """By rank; None: they did not go through."""
    smaller: int | None = None
    """Samples of a batch to try again with, where memory ran out."""
    gave_up: bool = False
    """Whether a rank wants to stop, so that they are not to be made again now."""


class Early:
    """Whether this rank should leave its passes before their end."""

    def __init__(self, run: Run, rows: int, *, yields: bool) -> None:
        self._run = run
        self._yields = yields
        self._looked = time.monotonic()
        self.gives_up = False
        """Whether this rank wants to stop."""
        self.ended = False
        """Whether a rank has left them so, as far as this one knows."""
        self.rows = rows
        """Of the batch at hand."""

    def __call__(self) -> bool:
        """Look; cheap enough for every batch."""
        side = self._run.groups.side
        if self._yields and not self.gives_up and self._run.wants_to_stop():
            self.gives_up = True
            if not self._run.strategy.forwards_together:  # else the ranks agree on each pass
                side.call(EARLY)
        if not self._run.strategy.forwards_together and time.monotonic() - self._looked > LOOK_S:
            self._looked = time.monotonic()
            self.ended = side.called(EARLY)
        return self.gives_up or self.ended


class _Failure(NamedTuple):
    """Memory ran out on this rank."""

    rows: int
    message: str


def go_through(run: Run, passes: Passes) -> Ended:
    """Make the passes on all ranks, and agree on how they ended.

    Memory that runs out on one rank is no failure while a batch can be cut: all ranks give up what they have. Where a
    forward pass is a collective, they meet as in a recovery of training; a strategy that cannot go on after that saves,
    with the smaller batch and the evaluation that is owed, and raises RestartNeeded. Raises OutOfMemory on all ranks
    where a single sample does not fit.
    """
    early = Early(run, passes.rows, yields=passes.yields)
    together = run.strategy.forwards_together and run.groups.world.size > 1
    failure, left = _attempt(run, passes, early, together=together)
    if left:
        gc.collect()
        empty_cache()
    if left and together:
        return Ended(None, _meet(run, passes, failure))
    return _agree(run, passes, early, failure)


def _attempt(run: Run, passes: Passes, early: Early, *, together: bool) -> tuple[_Failure | None, bool]:
    """Run them on this rank; returns its failure, and whether it left them by an error, of which nothing is held."""
    side, failure = run.groups.side, None
    if together:
        side.join = None  # a recovery is met in `_meet`, and not within an exchange
    try:
        _run(run, passes, early)
    except Exception as error:
        if run.config.train.out_of_memory.recover and finds_no_memory(error):
            failure = _Failure(early.rows, str(error).partition("\n")[0])
        elif not (together and (isinstance(error, Recovery) or heard(run, error))):
            raise
        for each in with_causes(error):
            traceback.clear_frames(each.__traceback__)
    else:
        return None, False
    finally:
        if together:
            stand_by(run)
    if failure is not None and not together:
        side.call(EARLY)
    return failure, True


def _run(run: Run, passes: Passes, early: Early) -> None:
    """In a frame of its own, which can be cleared."""
    with passes.inside():
        for number, micro_batch in enumerate(in_step(run, passes.batches(), early)):
            run.pulse.at(f"{passes.phase}, batch {number}", own=False)
            early.rows = micro_batch.samples or early.rows
            passes.function(micro_batch)


def _meet(run: Run, passes: Passes, failure: _Failure | None) -> int | None:
    """Take part in the recovery, after all ranks know why: what follows from it is in what the run saves."""
    side, smaller, reason = run.groups.side, None, None
    if failure is not None:
        reason = {
            **{"kind": passes.phase, "phase": passes.phase, "tried": failure.rows},
            **{"rank": run.groups.world.rank, "step": run.progress.step, "message": failure.message},
        }
        side.ask_to_recover(reason)
    first = side.asked()
    if first is not None and first["kind"] == passes.phase:
        smaller = _smaller(run, passes.phase, [(first["rank"], _Failure(first["tried"], first["message"]))])
        run.progress.evaluation_batch = smaller
        run.progress.owes_evaluation |= passes.yields
    recover(run, None, reason)
    return smaller


def _agree(run: Run, passes: Passes, early: Early, failure: _Failure | None) -> Ended:
    """Whole only where no rank has left early; the result of one that has counts for nothing."""
    whole = failure is None and not early.ended and not early.gives_up
    mine: dict[str, Any] = {"result": passes.result() if whole else None, "failure": failure, "whole": whole}
    mine["gives_up"] = early.gives_up
    if passes.yields:
        mine |= run.asks()
    answers = run.groups.side.exchange(passes.phase, mine)
    if passes.yields:
        run.heed(answers)
    failures = [(rank, _Failure(*answer["failure"])) for rank, answer in enumerate(answers) if answer["failure"]]
    smaller = _smaller(run, passes.phase, failures) if failures else None
    if all(answer["whole"] for answer in answers):
        return Ended([answer["result"] for answer in answers], None)
    return Ended(None, smaller, any(answer["gives_up"] for answer in answers))


def _smaller(run: Run, phase: str, failures: list[tuple[int, _Failure]]) -> int:
    """The size to try next, told on the screen and in events.jsonl. Raises OutOfMemory where there is none."""
    smaller = halved([failure.rows for _, failure in failures])
    for rank, (rows, message) in failures:
        if rows <= 1:
            raise OutOfMemory(
                f"rank {rank} has no memory for one sample of the {phase}: {message}",
                "use parallel.kind=fsdp, a smaller model or shorter samples",
            )
        place = {"rank": rank, "phase": phase, "step": run.progress.step, "message": message}
        run.event(OUT_OF_MEMORY, **place, **{"from": rows, "to": smaller})
        if run.is_rank_zero:
            logger.warning(
                "rank %d ran out of memory in the %s with %d samples: it is made again with batches of %d; training's "
                "micro-batches stay (%s)",
                *(rank, phase, rows, smaller, message),
            )
    return smaller
