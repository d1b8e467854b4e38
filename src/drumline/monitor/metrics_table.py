"""What Prometheus is told, as rows: base units, no pids. Here the form of a row, and rows about the watching itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from drumline.hardware.records import Snapshot

Subject = TypeVar("Subject")
Value = float | None | Mapping[tuple[str, ...], float]
"""One value (None: not known), or one for each combination of the row's own labels."""

GPU_LABELS = ("gpu", "name")
"""UUID and product name. Index and address are labels of drumline_gpu_info alone: an index moves when a GPU is lost."""

RUN_LABELS = ("run",)
"""Its name; where two on a machine have the same, the path of their directories."""


@dataclass(frozen=True)
class Row(Generic[Subject]):
    """One metric: how it is called, what it means, and where its value is found in a subject."""

    name: str
    """The whole name, which ends with the unit; of a counter without `_total`, which Prometheus' formats add."""
    unit: str
    """seconds, bytes, ratio (0 to 1), ...; empty for counts and states."""
    help: str
    read: Callable[[Subject], Value]
    kind: Literal["gauge", "counter"] = "gauge"
    labels: tuple[str, ...] = ()
    """Labels of its own, beside those that all metrics of the subject have."""


@dataclass(frozen=True)
class Watch:
    """Where the sampler stands at a scrape."""

    snapshot: Snapshot | None
    """The newest; None before the first."""
    age_s: float
    """Seconds since it was taken, or since the start where there is none."""
    overruns: int
    stuck: str | None


def _without_numbers(source: str) -> str:
    """Seconds and pids are ever new ones, and each would be a new series."""
    return re.sub(r"\d+(?= s\b)|(?<=process )\d+", "some", source)


WATCH_ROWS: tuple[Row[Watch], ...] = (
    Row(
        "drumline_sample_age_seconds",
        "seconds",
        "Time since the GPUs were last looked at; it grows while the driver does not answer.",
        lambda watch: watch.age_s,
    ),
    Row(
        "drumline_sample_overruns",
        "",
        "Looks at the GPUs that were left out because the one before took too long.",
        lambda watch: watch.overruns,
        "counter",
    ),
    Row(
        "drumline_driver_stuck",
        "",
        "Whether the driver has left a question unanswered (1) or not (0).",
        lambda watch: float(watch.stuck is not None),
    ),
    Row(
        "drumline_gpus",
        "",
        "GPUs and MIG instances that answer, whatever CUDA_VISIBLE_DEVICES says.",
        lambda watch: None if watch.snapshot is None else len(watch.snapshot.gpus),
    ),
    Row(
        "drumline_gpus_left_out",
        "",
        "GPUs that the driver lists and that cannot be read: lost, or in need of a reset.",
        lambda watch: None if watch.snapshot is None else len(watch.snapshot.problems),
    ),
    Row(
        "drumline_gpus_unreadable",
        "",
        "Whether there is a driver that tells of no GPU at all (1) or not (0).",
        lambda watch: None if watch.snapshot is None else float(not watch.snapshot.gpus and not watch.snapshot.no_gpu),
    ),
    Row(
        "drumline_source_info",
        "",
        "Where the values of the GPUs come from, or why there are none; always 1.",
        lambda watch: None if watch.snapshot is None else {(_without_numbers(watch.snapshot.source),): 1.0},
        labels=("source",),
    ),
)

SOURCE_ROWS: tuple[Row[Mapping[str, float]], ...] = (
    Row(
        "drumline_source_age_seconds",
        "seconds",
        "Time since health (verdicts), XIDs (xids) and run directories (runs) could last be read.",
        lambda ages: {(name,): age for name, age in ages.items()},
        labels=("source",),
    ),
)
