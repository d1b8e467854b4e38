"""A tracker that cannot end the run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from drumline.plan.record import Plan
from drumline.track.protocol import Tracker

logger = logging.getLogger(__name__)

Event = Callable[..., None]
"""event(name, **facts) writes one line to events.jsonl."""


class GuardedTracker:
    """Hands everything on to a tracker until that fails: it is then warned of once, closed, and left out from there on.

    Only what ends a program (Ctrl-C, SystemExit) gets through. A tracker that never returns is not guarded against.
    """

    def __init__(self, tracker: Tracker, event: Event) -> None:
        self._tracker: Tracker | None = tracker
        self._event = event

    def start(self, plan: Plan, total_steps: int | None) -> None:
        """As the tracker does."""
        self._call(lambda tracker: tracker.start(plan, total_steps), "start")

    def log(self, record: dict[str, Any]) -> None:
        """Hand on a copy, so that a tracker which changes its record does not change that of the others."""
        self._call(lambda tracker: tracker.log(dict(record)), "log")

    def close(self) -> None:
        """As the tracker does; not called again after a failure."""
        self._call(lambda tracker: tracker.close(), "close")

    def _call(self, action: Callable[[Tracker], None], method: str) -> None:
        tracker = self._tracker
        if tracker is None:
            return
        try:
            action(tracker)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # not Exception: a panic in a Rust extension, say, is none
            self._tracker = None
            self._give_up(tracker, method, error)

    def _give_up(self, tracker: Tracker, method: str, error: BaseException) -> None:
        name = type(tracker).__qualname__
        message = f"{name}.{method}: {type(error).__name__}: {error}"
        logger.warning("the tracker %s failed and is left out from here on, the run goes on: %s", name, message)
        logger.info("where it failed:", exc_info=error)  # to the log file; the console shows warnings only
        if method != "close":
            try:
                tracker.close()
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as second:
                logger.info("closing it failed too: %s: %s", type(second).__name__, second)
        event = self._event
        try:
            event("tracker_failed", tracker=name, message=message)
        except (OSError, ValueError) as second:  # no room for the line, or the file is closed already
            logger.warning("events.jsonl does not say so: %s", second)
