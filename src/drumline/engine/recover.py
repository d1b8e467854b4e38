"""Going on after a failure that leaves all processes alive: an update that found no memory first of all.

The protocol. The rank that fails asks for a recovery on the side channel, and lets go of all that holds the training
group, which frees those that are stuck in it; the others hear of it where they wait for a message, by the error of
their collective, or by the thread that watches for it where a device is stuck. Each rank leaves the handler of its
error, with every frame of the dead update cleared, before it does anything else. In a new generation of rounds all tell
how many optimizer steps they have made, and whether one is half made. No rank makes a step before all have agreed to,
after their passes; so these numbers are equal where passes failed, and differ by one where a step did. Those behind
take weights and optimizer state from the first rank that is whole and ahead, with the outcome of the step that they
missed; then all stand at one place, and what is not committed is run again: buffers as before the window, random
streams begun anew from its number, the rows cut into micro-batches of half the size. A rank that waits between two
updates is ahead by nature: it takes part from within its wait and goes on waiting.
"""

from __future__ import annotations

import gc
import logging
import random
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from drumline.engine.ending import with_causes
from drumline.engine.marks import Mark, Turn
from drumline.engine.meeting import Report, Verdict, judge, numbers, on_device, outcome_of
from drumline.engine.process import empty_cache
from drumline.errors import DrumlineError, GroupError, OutOfMemory, PeerFailed, RestartNeeded
from drumline.launcher.failures import failure_of
from drumline.parallel.side_channel import Recovery, SideChannel
from drumline.parallel.strategy import Outcome

if TYPE_CHECKING:
    from drumline.engine.run import Run

logger = logging.getLogger("drumline")

OUT_OF_MEMORY = "out_of_memory"
COLLECTIVE = "collective"

NO_MEMORY = (
    "defaultcpuallocator: can't allocate memory",  # torch on the CPU
    "defaultcpuallocator: not enough memory",
    "cuda out of memory",
    "cuda error: out of memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "cudnn_status_internal_error_host_allocation_failed",
    "cufft_alloc_failed",
)
"""What errors say, in lower case, that are no torch.OutOfMemoryError and mean the same."""

MOST_ALIKE = 3
"""Times that one update may fail with one error that is not about memory."""

RESTART = "start the run again: it goes on from its newest checkpoint"

LOOK_S = 0.02
"""Between two looks for it."""

WORD_S = 2.0
"""How long a rank whose collective broke waits for another one's word of why."""

ALIVE_S = 10.0
"""How long all may take to meet where a collective broke and nobody said why: who does not come is dead."""


def finds_no_memory(error: BaseException) -> bool:
    """Whether an error, or what it came from, means that a device or the host had no memory left."""
    return any(
        isinstance(each, torch.OutOfMemoryError)
        or (isinstance(each, RuntimeError) and any(text in str(each).lower() for text in NO_MEMORY))
        for each in with_causes(error)
    )


def halved(tried: Sequence[int]) -> int:
    """Half of the largest micro-batch that each rank without memory has tried; the least over them, at least 1."""
    return max(1, min(size // 2 for size in tried))


class Attempt:
    """A stretch of the loop that may be given up: what fails inside is kept from the caller, if it can be recovered."""

    def __init__(self, run: Run, turn: Turn | None) -> None:
        self._run = run
        self._turn = turn
        self._reason: dict[str, Any] | None = None
        self.failed = False

    def __enter__(self) -> Attempt:
        self._run.groups.side.join = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        stand_by(self._run)
        if error is None:
            return False
        run, side = self._run, self._run.groups.side
        if not isinstance(error, Recovery):
            self._reason = why(run, self._turn, error)
            if self._reason is None and not heard(run, error):
                return False
        if self._reason is not None:
            side.ask_to_recover(self._reason)
        for each in with_causes(error):
            traceback.clear_frames(each.__traceback__)
        self.failed = True
        return True

    def recover(self) -> bool:
        """Take part in the recovery; returns whether the window is through after all.

        Called outside of any handler, while nothing refers to the window. The run stands where it goes on from.
        """
        return recover(self._run, self._turn, self._reason)


def attempted(run: Run, turn: Turn | None) -> Attempt:
    """The context of passes, agreement and steps of a window, or with None of the agreement before an epoch."""
    return Attempt(run, turn)


def stand_by(run: Run) -> None:
    """Between two updates, take part in recoveries from wherever this rank waits."""
    run.groups.side.join = partial(join, run)


def join(run: Run) -> None:
    """Take part in a recovery from within a wait between two updates."""
    run.groups.side.join = None
    try:
        recover(run, None, None)
    finally:
        stand_by(run)


def why(run: Run, turn: Turn | None, error: BaseException) -> dict[str, Any] | None:
    """The reason with which this rank asks for a recovery; None where its error cannot be recovered, or is no cause."""
    place = {"rank": run.groups.world.rank, "step": run.progress.step, "message": str(error).partition("\n")[0]}
    if turn is None or not run.config.train.out_of_memory.recover:
        return None
    if finds_no_memory(error):
        return {"kind": OUT_OF_MEMORY, "phase": turn.phase, "tried": turn.largest, **place}
    if run.groups.world.size > 1 and failure_of(None, error).is_consequence and silent(run.groups.side):
        return {"kind": COLLECTIVE, "phase": turn.phase, **place}
    return None


def heard(run: Run, error: BaseException) -> bool:
    """Whether this rank's error comes of another one's recovery; its word is waited for where a collective broke."""
    side = run.groups.side
    if side.asked() is None and run.groups.world.size > 1 and failure_of(None, error).is_consequence:
        silent(side)
    return side.asked() is not None


def silent(side: SideChannel) -> bool:
    """Whether no rank says within WORD_S why a collective broke: neither a failure nor that it asks to recover."""
    limit = time.monotonic() + WORD_S
    while time.monotonic() < limit:
        if side.asked() is not None or side.failure() is not None:
            return False
        time.sleep(LOOK_S)
    return True


def recover(run: Run, turn: Turn | None, reason: dict[str, Any] | None) -> bool:
    """Meet the others, agree on what counts, and stand where the run goes on; returns whether the window is through."""
    side, strategy, groups, marks = run.groups.side, run.strategy, run.groups, run.marks
    began = run.clock()
    strategy.give_up()
    groups.give_up()
    groups.stop_watch()
    gc.collect()
    empty_cache()
    side.next_generation()
    learn_what_is_known(run)
    commits = strategy.committed()
    reports = meet(run, Report(commits.steps, commits.torn, reason, numbers(marks.outcomes)))
    reasons = [report.reason for report in reports if report.reason is not None]
    shrunk = decide(run, reasons)
    verdict = judge(reports)
    if verdict is None:
        raise RestartNeeded(
            "memory ran out in the middle of an optimizer step on all ranks, so that no whole weights are left",
            f"{RESTART}; a smaller train.micro_batch leaves more room",
        )
    outcomes = {int(number): outcome_of(values) for number, values in reports[verdict.giver].outcomes.items()}
    through = stand(run, turn, verdict.steps, commits.steps, outcomes)
    if not strategy.can_rebuild:
        restart(run, verdict, reasons, shrunk)
    groups.rebuild()
    if verdict.takers:
        strategy.hand_over(groups, verdict.giver, takes=groups.world.rank in verdict.takers)
    strategy.rebuild(groups, verdict.steps)
    tell(run, reasons, shrunk)
    if shrunk is not None:
        run.progress.micro_batch, run.progress.since_shrunk = shrunk, 0
    recut(run)
    logger.info("recovered after %.2f s", run.clock() - began)
    return through


def meet(run: Run, mine: Report) -> list[Report]:
    """Every rank's report; PeerFailed where a collective broke and a rank does not come: it is dead."""
    broke = mine.reason is not None and mine.reason["kind"] == COLLECTIVE
    try:
        answers = run.groups.side.exchange("recovery", list(mine), ALIVE_S if broke else None)
    except GroupError as error:
        if mine.reason is None or not broke:
            raise
        raise PeerFailed(f"{mine.reason['message']}; {error.problem}", "see that rank's log") from error
    return [Report(*answer) for answer in answers]


def learn_what_is_known(run: Run) -> None:
    """Take in all outcomes; void ones, whose reduction an abort has cut off, are as if they had not been."""
    try:
        run.learn(keep=0)
    except Recovery:
        run.learn(keep=0)


def stand(run: Run, turn: Turn | None, steps: int, made: int, outcomes: Mapping[int, Outcome]) -> bool:
    """Move this rank to where the run goes on; returns whether the window of `turn` is through.

    steps: those that count; made: those that this rank has made itself; outcomes: of the newest ones, by number.
    """
    marks, num = run.marks, len(run.tasks)
    marks.steps = steps
    mark = marks.at(steps)
    if mark is None:
        if marks.newest:
            raise RestartNeeded("the ranks are too far apart to go on", RESTART)
        return False  # before the first window
    taken = [on_device(outcomes[number], run.groups.device) for number in range(made, steps)]
    earlier = max(0, mark.steps - made)  # of windows that this rank has gone on from without having made their step
    for first in range(0, earlier, num):
        run.pending.push(mark.begun - run.progress.skipped, taken[first : first + num])
    run.learn(keep=0)
    taken = taken[earlier:]
    done = steps - mark.steps
    if done >= num:
        if turn is None or not turn.agreed or mark is not marks.newest[-1]:
            run.strategy.undo()  # of a window that has not come to its step
            return False
        turn.outcomes = [*turn.outcomes[: num - len(taken)], *taken]
        for outcome in taken:
            run.strategy.settle(applied=bool(outcome.applied))
        if turn.accounted and taken:  # with sums that counted nothing
            run.interval.samples, run.interval.units = mark.samples, mark.units
            turn.accounted = False
        return True
    if turn is None:
        raise RestartNeeded("an update was cut off after this rank had gone on from it", RESTART)
    run.strategy.undo()
    restore(run, mark)
    if done:
        turn.outcomes, turn.sums = [*turn.outcomes[: done - len(taken)], *taken], turn.sums[:done]
        marks.carried = turn
    return False


def restore(run: Run, mark: Mark) -> None:
    """Stand before this window again."""
    progress, interval = run.progress, run.interval
    progress.step, progress.epoch, progress.window = mark.begun - progress.skipped, mark.epoch, mark.window
    interval.samples, interval.units = mark.samples, mark.units
    run.marks.again = True


def decide(run: Run, reasons: Sequence[Mapping[str, Any]]) -> int | None:
    """The new micro-batch, None where its size is not the matter. Raises what ends the run, alike on all ranks."""
    short = [reason for reason in reasons if reason["kind"] == OUT_OF_MEMORY]
    if short:
        least = min(short, key=lambda reason: reason["tried"])
        if least["tried"] <= 1:
            raise OutOfMemory(
                f"rank {least['rank']} has no memory for a micro-batch of one sample, in {least['phase']} of update "
                f"{least['step']}: {least['message']}",
                "use train.checkpointing, parallel.kind=fsdp, a smaller model or shorter samples",
            )
        return halved([reason["tried"] for reason in short])
    for reason in (reason for reason in reasons if reason["kind"] == COLLECTIVE):
        key = (reason["step"], reason["message"])
        run.marks.failures[key] += 1
        if run.marks.failures[key] >= MOST_ALIKE:
            raise DrumlineError(
                f"update {reason['step']} failed {MOST_ALIKE} times with the same error on rank {reason['rank']}: "
                f"{reason['message']}",
                "see its log",
            )
    return None


def restart(run: Run, verdict: Verdict, reasons: Sequence[Mapping[str, Any]], shrunk: int | None) -> None:
    """Where the processes cannot go on, save what is committed and end with RestartNeeded, on all ranks."""
    tell(run, reasons, shrunk)
    if shrunk is not None:
        run.progress.micro_batch, run.progress.since_shrunk = shrunk, 0
    if verdict.takers:
        raise RestartNeeded("memory ran out in an optimizer step that other ranks have made: shards differ", RESTART)
    run.checkpoints.save(run, wait=True)
    raise RestartNeeded(f"the run goes on in new processes, with micro-batches of {micro_batch_of(run)}", RESTART)


def tell(run: Run, reasons: Sequence[Mapping[str, Any]], shrunk: int | None) -> None:
    """Log why, on the screen and in events.jsonl."""
    before = micro_batch_of(run)
    for reason in reasons:
        if reason["kind"] == OUT_OF_MEMORY:
            run.event(
                OUT_OF_MEMORY,
                **{key: reason[key] for key in ("rank", "phase", "step", "message")},
                **{"from": before, "to": shrunk},
            )
            logger.warning(
                "rank %s ran out of memory in %s of update %s: micro-batches of %s samples from now on, the global "
                "batch stays (%s)",
                *(reason[key] for key in ("rank", "phase", "step")),
                shrunk,
                reason["message"],
            )
        elif reason["kind"] == COLLECTIVE:
            run.event("recovered", **reason)
            logger.warning("rank %s: update %s is made again: %s", reason["rank"], reason["step"], reason["message"])


def micro_batch_of(run: Run) -> int:
    """Samples a pass and shard at most."""
    return run.progress.micro_batch or run.plan.micro_batch


def recut(run: Run) -> None:
    """Have the feed cut windows into micro-batches of the size that the run has come to."""
    if run.progress.micro_batch is not None:
        run.feed.recut(run.progress.micro_batch)


def grow(run: Run) -> bool:
    """Double a micro-batch that had to shrink, where the settings ask for it and its time has come."""
    after, progress = run.config.train.out_of_memory.grow_after, run.progress
    if after is None or progress.micro_batch is None or progress.since_shrunk < after:
        return False
    if progress.micro_batch >= run.plan.micro_batch:
        return False
    progress.micro_batch, progress.since_shrunk = min(2 * progress.micro_batch, run.plan.micro_batch), 0
    run.event("micro_batch_grown", step=progress.step, to=progress.micro_batch)
    logger.info("micro-batches of %s samples are tried again", progress.micro_batch)
    recut(run)
    return True


def begin_streams(kept: Any, device: torch.device) -> Any:
    """Random streams before a further learner's passes: as they were the first time, where these are made again."""
    cuda = device.type == "cuda"
    if kept is None:
        gpu = torch.cuda.get_rng_state(device) if cuda else None
        return random.getstate(), np.random.get_state(), torch.get_rng_state(), gpu
    python_state, numpy_state, torch_state, gpu = kept
    random.setstate(python_state)
    np.random.set_state(numpy_state)
    torch.set_rng_state(torch_state)
    if gpu is not None:
        torch.cuda.set_rng_state(gpu, device)
    return kept
