"""What is noted of a batch that did not go through whole: its parts, how often each was begun, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from drumline.infer.ledger_folder import is_there
from drumline.infer.records import Part
from drumline.predictions import PredictionDir
from drumline.rundir import read_json, write_atomic


@dataclass(frozen=True)
class Trouble:
    """The file of one batch; written by whoever holds the batch."""

    parts: tuple[Part, ...]
    reasons: tuple[str, ...] = ()
    """Of each split, in their order."""


def trouble_file(directory: PredictionDir, batch: int) -> Path:
    """Where the trouble of one batch is noted."""
    return directory.trouble / f"{batch}.json"


def read_trouble(directory: PredictionDir, batch: int) -> Trouble | None:
    """What is noted of a batch; None: it never failed."""
    file = trouble_file(directory, batch)
    if not is_there(file):
        return None
    value = read_json(file)
    return Trouble(tuple(map(_part_of, value["parts"])), tuple(value["reasons"]))


def write_trouble(directory: PredictionDir, batch: int, trouble: Trouble) -> None:
    """Note it, durably. Raises OSError."""
    write_atomic(trouble_file(directory, batch), json.dumps(asdict(trouble)) + "\n")


def begun(parts: Sequence[Part], running: int | None, part: int | None) -> tuple[Part, ...]:
    """The parts once `part` is begun after `running` (None: none), which has come to its end."""
    return tuple(
        replace(each, starts=each.starts + (place == part) - (place == running)) for place, each in enumerate(parts)
    )


def _part_of(value: dict[str, Any]) -> Part:
    rows, shape = value.pop("rows"), value.pop("shape")
    return Part(tuple(rows), None if shape is None else (shape[0], shape[1]), **value)
