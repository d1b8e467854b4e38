"""What the process that records the GPUs of one machine of a run is told, as the line that its parent writes to it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MODULE = "drumline.monitor.record"
"""Started as `python -m MODULE RUN`; the settings come on standard input."""
END = "end"
"""The line that the parent writes when the run has ended in good order; an end of the pipe without it is its death."""
PHASE = "phase "
"""Beginning of the line that says what the run goes over to: TRAINING, evaluation or checkpoint."""
TRAINING = "training"
GPU_SICK = "gpu_sick"
"""The event that it writes of a GPU (`gpu`: its UUID) whose health has turned to fail."""


@dataclass(frozen=True)
class RecordingJob:
    """One machine's part of one attempt."""

    run_dir: Path
    gpus: tuple[str, ...]
    """UUIDs of those that the run uses on this machine."""
    node: str
    machine: int
    """0: the one that writes metrics.jsonl and events.jsonl."""
    parent: int
    """Process id of the worker, with which the recorder ends."""
    step: int
    """After which the attempt begins."""
    elapsed_s: float
    """The clock of metrics.jsonl, when this was written ..."""
    written: float
    """... which was then, in seconds since 1970."""
    monitor: dict[str, Any]
    """MonitorConfig as plain values."""
    sick_gpu: str = "ignore"
    """faults.sick_gpu."""

    @property
    def every_s(self) -> float:
        """Seconds between two looks."""
        return float(self.monitor["every_s"])

    def to_line(self) -> bytes:
        """As it goes through the pipe."""
        return json.dumps(asdict(self), default=str).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> RecordingJob:
        """Back again."""
        values = json.loads(line)
        return cls(**{**values, "run_dir": Path(values["run_dir"]), "gpus": tuple(values["gpus"])})
