"""Which trackers a run has."""

from __future__ import annotations

from collections.abc import Sequence

from drumline.config.schema import TrackConfig
from drumline.rundir import RunDir
from drumline.track.console import ConsoleTracker
from drumline.track.guarded import Event, GuardedTracker
from drumline.track.jsonl import JsonlTracker
from drumline.track.protocol import Tracker
from drumline.track.tensorboard import TensorBoardTracker, load_tensorboard


def check_trackers(config: TrackConfig) -> None:
    """Raise MissingExtra where a tracker's package is not there; for rank 0, before the run directory is made."""
    if config.tensorboard:
        load_tensorboard()


def open_trackers(
    config: TrackConfig, directory: RunDir, own: Sequence[Tracker], event: Event, resumed: int | None = None
) -> tuple[Tracker, ...]:
    """Rank 0's trackers, not started yet: metrics.jsonl, the user's own, and those that the config asks for.

    metrics.jsonl is part of the run, so that its failure is the run's. Every other one is guarded: its failure becomes
    a warning and, by `event`, a line of events.jsonl. resumed: the update after which a run goes on; None: it begins.
    Raises MissingExtra as `check_trackers` does.
    """
    others = list(own)
    if config.tensorboard:
        others.append(TensorBoardTracker(directory.path / "tensorboard", directory.config, resumed))
    if config.console:
        others.append(ConsoleTracker())
    return (JsonlTracker(directory.metrics), *(GuardedTracker(tracker, event) for tracker in others))
