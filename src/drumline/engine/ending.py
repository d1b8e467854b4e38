"""How a run ends: given back in order, or failing on all ranks with the first failing rank's message."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import torch
from torch.distributed import DistError

import drumline
from drumline.data.sharing import explained
from drumline.engine.run import Run
from drumline.errors import DrumlineError, GroupError, PeerFailed
from drumline.launcher.failures import FIX_MARK, failure_of
from drumline.launcher.spec import MARK
from drumline.launcher.world import World
from drumline.parallel.side_channel import SideChannel
from drumline.rundir import LineWriter, write_json

logger = logging.getLogger("drumline")

OURS = tuple(f"{Path(package.__file__).parent}/" for package in (drumline, torch) if package.__file__)
"""Beginnings of the file names of drumline's code and torch's."""

INTERRUPTED = 3
"""Exit status in exit.json of a run that was stopped from outside; it can be resumed."""


def release(run: Run) -> None:
    """Give back trackers, loader processes and wrappers. The recorder is told, and not waited for: others wait here."""
    if run.recorder is not None:
        run.recorder.end()
    run.checkpoints.close()
    for tracker in run.trackers:
        tracker.close()
    if run.events is not None:
        run.events.close()
    run.feed.close()
    if run.evaluation_feed is not None:
        run.evaluation_feed.close()
    run.strategy.close()
    if run.lock is not None:
        run.lock.release()


def write_exit(run: Run, status: int, reason: str, message: str = "") -> None:
    """Write how the run ended."""
    write_json(
        run.directory.exit,
        {"exit_status": status, "reason": reason, "message": message, "steps": run.progress.step},
    )


def end_run(run: Run) -> None:
    """Write how a run ended that did not fail; on rank 0."""
    reason = run.reason or "done"
    if run.interrupted:
        write_exit(run, INTERRUPTED, "interrupted", reason)
        run.event("interrupted", step=run.progress.step, message=reason)
    else:
        write_exit(run, 0, reason)
        run.event("end", step=run.progress.step, reason=reason)


@contextmanager
def failing_together(current: Callable[[], Run | None], forget: Callable[[], None]) -> Iterator[None]:
    """Turn any failure in the block into one of all ranks.

    The rank that fails first says so on the side channel and takes its groups down, which frees the others from their
    collectives; those raise PeerFailed with its message.
    """
    with told_to_elastic():
        try:
            yield
        except GeneratorExit:
            raise  # the caller left the loop: no failure
        except BaseException as error:
            run = current()
            if run is None:
                raise
            forget()
            # torch tells of a killed loader process wherever the main thread is just then.
            reason = explained(error) if isinstance(error, RuntimeError | OSError) else None
            fail(run, reason or error)
            if reason is not None:
                raise reason from error
            raise


def fail(run: Run, error: BaseException) -> None:
    """End the run on all ranks because of this error; raises PeerFailed where another rank's failure caused it."""
    told = tell(run.groups.world, run.groups.side, error)
    if told.is_first:
        # By the first rank itself, whichever it is: the launcher may end the others before they hear of it.
        interrupted = isinstance(error, KeyboardInterrupt)
        reason, status = ("interrupted", INTERRUPTED) if interrupted else ("failed", told.exit_status)
        events = run.events or LineWriter(run.directory.events)
        events.write({"event": reason, "rank": told.rank, "message": told.message, "step": run.progress.step})
        events.close()
        write_exit(run, status, reason, told.message)
    release(run)
    let_go(error)
    run.groups.abort()
    if run.profile is not None:
        run.profile.close()  # it waits for the device, which nothing holds up any more
    if run.recorder is not None and MARK not in os.environ:
        run.recorder.close()  # under our launcher, which gives a failed rank but seconds, it ends by itself
    if told.peer is not None:
        raise told.peer from error


def let_go(error: BaseException) -> None:
    """Clear what drumline's and torch's ended calls hold: the other ranks are not free while a wrapper is among it.

    The user's own frames stay as they are, for his debugger.
    """
    for each in with_causes(error):
        for frame, _ in traceback.walk_tb(each.__traceback__):
            if frame.f_code.co_filename.startswith(OURS):
                with suppress(RuntimeError):  # a call that has not ended, such as the one that called this
                    frame.clear()


def with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those that it was raised from, or while handling them."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class Told(NamedTuple):
    """What came of telling the other ranks of a failure."""

    rank: int
    message: str
    """This rank's own."""
    exit_status: int
    is_first: bool
    peer: PeerFailed | None
    """The first rank's failure, where this one is only a consequence of it."""


def tell(world: World, side: SideChannel, error: BaseException) -> Told:
    """Report this rank's failure to the others, and learn who was first."""
    rank = world.rank
    failure = failure_of(rank, error)
    # The end of a peer is seen here before anybody else can tell of it: not this rank's own fault.
    verb = "lost another rank, which left no word" if failure.is_consequence else "failed"
    message = f"rank {rank} {verb}: {failure.message}"
    first, peer = message, None
    try:
        side.report_failure(message)
        first = side.failure() or message
    except DistError as lost:
        logger.warning("the side channel is gone, so the other ranks cannot be told: %s", lost)
        if failure.is_consequence:
            peer = store_lost(world)
    own = isinstance(error, KeyboardInterrupt | DrumlineError) and not isinstance(error, PeerFailed | GroupError)
    if first != message and not own:
        problem, _, fix = first.partition(FIX_MARK)
        peer = PeerFailed(problem, fix or "see that rank's log")
    return Told(rank, message, failure.exit_status, first == message, peer)


def store_lost(world: World) -> PeerFailed:
    """What a rank says that is left without the store: torch's own words tell of a socket, and not of whose."""
    server, log = "the launcher", "its output"
    if (world.init_method or "").startswith("tcp://"):
        server, log = "rank 0", "that rank's log"
    return PeerFailed(f"{server}, which serves the store by which ranks agree, is gone without a word", f"see {log}")


@contextmanager
def told_to_elastic() -> Iterator[None]:
    """Leave a failure in the block where torch elastic's own agent, as torchrun's, reads it for its summary.

    The agent of `drumline launch` names no such file: it has records of its own.
    """
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException as error:
        if os.environ.get("TORCHELASTIC_ERROR_FILE"):
            from torch.distributed.elastic.multiprocessing.errors import get_error_handler

            get_error_handler().record_exception(error)
        raise
