"""What the engine hands out: a record a step, and one for the whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class StepInfo:
    """One update, as `steps()` yields it and callbacks see it."""

    step: int
    """Updates begun so far, this one included; a skipped one is not counted once it is known."""
    epoch: int
    """Epoch of the update's samples, from 0."""
    samples: int
    """Samples of this update over all shards."""
    units: int
    """Counted units (tokens or samples) of this update over all shards."""
    logged: Mapping[str, Any] | None = None
    """The log line that was written with this update, over all ranks; None between log lines."""
    evaluation: Mapping[str, float] | None = None
    """Metrics of the evaluation that followed this update; None where there was none."""


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    steps: int
    """Completed updates."""
    skipped: int
    """Updates that were skipped for a non-finite gradient."""
    reason: str
    """done, early_stop, what a callback gave to `stop`, or what interrupted the run."""
    evaluation: Mapping[str, float] | None
    """The last evaluation's metrics."""
    run_dir: Path
    """Where the run is kept."""
    history: tuple[Mapping[str, float], ...] = field(default=())
    """Every evaluation's metrics, in order."""
