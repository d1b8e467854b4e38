"""The history of an ended job, as its run's metrics.jsonl has it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from drumline.rundir import RunDir, read_lines
from drumline.service.views import finite

MOST_RECORDS = 1000
"""Of a job's answer. All of them are at its `metrics`."""
KINDS = ("train", "eval")


def training_history(run: Path) -> tuple[Mapping[str, Any], ...]:
    """Log lines and evaluations, null for what is not finite; of more than MOST_RECORDS some, first and last too."""
    metrics = RunDir(run).metrics
    try:
        status = os.stat(metrics)  # noqa: PTH116  # read anew only when it is another file
    except OSError:
        return ()
    return _read(metrics, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _read(metrics: Path, *_version: int) -> tuple[Mapping[str, Any], ...]:
    records = [record for record in read_lines(metrics) if record.get("kind") in KINDS]
    return tuple(finite(record) for record in spread(records, MOST_RECORDS))


def spread(records: list[dict[str, Any]], most: int) -> tuple[Mapping[str, Any], ...]:
    """At most `most` of them, evenly spread, the first and the last among them."""
    if len(records) <= most:
        return tuple(records)
    last = len(records) - 1
    return tuple(records[round(index * last / (most - 1))] for index in range(most))
