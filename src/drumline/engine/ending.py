"""How a run ends: given back in order, or failing on all ranks with the first failing rank's message."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.distributed import DistError

from drumline.engine.run import Run
from drumline.errors import DrumlineError, GroupError, PeerFailed
from drumline.launcher.failures import failure_of
from drumline.rundir import write_json

logger = logging.getLogger("drumline")


def release(run: Run) -> None:
    """Give back trackers, loader processes and wrappers."""
    for tracker in run.trackers:
        tracker.close()
    if run.events is not None:
        run.events.close()
    run.feed.close()
    if run.evaluation_feed is not None:
        run.evaluation_feed.close()
    run.strategy.close()


def write_exit(run: Run, status: int, reason: str, message: str = "") -> None:
    """Write how the run ended."""
    write_json(
        run.directory.exit,
        {"exit_status": status, "reason": reason, "message": message, "steps": run.progress.step},
    )


@contextmanager
def failing_together(current: Callable[[], Run | None], forget: Callable[[], None]) -> Iterator[None]:
    """Turn any failure in the block into one of all ranks.

    The rank that fails first says so on the side channel and takes its groups down, which frees the others from their
    collectives; those raise PeerFailed with its message.
    """
    try:
        yield
    except GeneratorExit:
        raise  # the caller left the loop: no failure
    except BaseException as error:
        run = current()
        if run is None:
            raise
        forget()
        peer = first_to_fail(run, error)
        release(run)
        run.groups.abort()
        if peer is not None:
            raise PeerFailed(peer, "see that rank's log") from error
        raise


def first_to_fail(run: Run, error: BaseException) -> str | None:
    """Report the failure; returns the other rank's message where this one is only a consequence of it."""
    own = isinstance(error, DrumlineError) and not isinstance(error, PeerFailed | GroupError)
    message = f"rank {run.groups.world.rank} failed: {failure_of(None, error).message}"
    first = message
    try:
        run.groups.side.report_failure(message)
        first = run.groups.side.failure() or message
    except DistError as lost:
        logger.warning("the side channel is gone, so the other ranks cannot be told: %s", lost)
    if first == message:
        run.event("failed", message=message)
        status = error.exit_status if isinstance(error, DrumlineError) else 1
        write_exit(run, status, "interrupted" if isinstance(error, KeyboardInterrupt) else "failed", message)
    return None if first == message or own else first
