"""The history of an ended job, as its run's metrics.jsonl has it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from drumline.rundir import RunDir, read_lines
from drumline.service.kept_json import KeptJson

MOST_RECORDS = 1000
"""Of a job's answer. All of them are at its `metrics`."""
KINDS = ("train", "eval")
_KEPT = KeptJson(8 * 2**20)


def training_history(run: Path) -> bytes:
    """Log lines and evaluations as a JSON list, null for what is not finite.

    Of more than MOST_RECORDS some, first and last too. What a file of the same size and moment said is kept.
    """
    metrics = RunDir(run).metrics
    try:
        status = os.stat(metrics)  # noqa: PTH116  # read anew only when it is another file
    except OSError:
        return b"[]"
    key = (metrics, status.st_ino, status.st_size, status.st_mtime_ns)
    return _KEPT.get(key, lambda: _read(metrics))


def _read(metrics: Path) -> bytes:
    records = [record for record in read_lines(metrics) if record.get("kind") in KINDS]
    return to_json(spread(records, MOST_RECORDS), inf_nan_mode="null")


def spread(records: list[dict[str, Any]], most: int) -> tuple[Mapping[str, Any], ...]:
    """At most `most` of them, evenly spread, the first and the last among them."""
    if len(records) <= most:
        return tuple(records)
    last = len(records) - 1
    return tuple(records[round(index * last / (most - 1))] for index in range(most))
