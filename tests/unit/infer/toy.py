"""A predictor of a few lines, and runs of it in a temporary folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from drumline.config.inference import InferenceConfig
from drumline.infer.records import Answer, Facts, Prepared
from drumline.infer.records import Row as Row
from drumline.infer.rows import rows_of, write_rows
from drumline.infer.work import WorkSettings, work
from drumline.predictions import PredictionDir

CPU = torch.device("cpu")
Hook = Callable[[Sequence[int], int, int], None]


def no_hook(rows: Sequence[int], num_rows: int, width: int) -> None:
    """Nothing goes wrong."""


@dataclass
class Toy:
    """Answers with what a batch-dependent computation in floats would show: the shape it ran in, beside the text."""

    hook: Hook = no_hook
    """Told rows, their number with those filled in for, and width, before a batch is run."""
    ran: list[tuple[int, ...]] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    settled: Facts = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        return ("answer", "shape", "place", "new_tokens")

    def prepare(self, rows: Sequence[Row]) -> list[Prepared | str]:
        self.threads.add(threading.current_thread().name)
        return [self._prepare(row) for row in rows]

    def _prepare(self, row: Row) -> Prepared | str:
        text = row.values.get("text")
        if not isinstance(text, str):
            return "the row has no field 'text'"
        return Prepared(row.number, len(text), len(text) + 1, text)

    def survey(self, prepared: Sequence[Prepared]) -> Facts:
        return {"longest": max((row.length for row in prepared), default=0)}

    def settle(self, facts: Facts) -> None:
        self.settled = facts

    def run(self, rows: Sequence[Prepared | None], width: int) -> list[Answer]:
        there = [row for row in rows if row is not None]
        self.ran.append(tuple(row.number for row in there))
        self.hook([row.number for row in there], len(rows), width)
        return [
            {"answer": row.payload[::-1], "shape": [len(rows), width], "place": place, "new_tokens": 1}
            for place, row in enumerate(rows)
            if row is not None
        ]


def texts(num: int) -> list[str]:
    """Of mixed lengths, each another."""
    return [f"{number}:" + "x" * (number * 7 % 23) for number in range(num)]


def config_for(out: Path, **batching: Any) -> InferenceConfig:
    return InferenceConfig.model_validate(
        {
            "model": {"path": "toy"},
            "rows": {"files": ["rows"]},
            "output": {"file": out},
            "batching": {"tokens": 64, "rows": 8, "window": 40, **batching},
        }
    )


def begin(
    out: Path, source: Iterable[Mapping[str, Any] | str], **batching: Any
) -> tuple[PredictionDir, InferenceConfig]:
    """A run directory with its rows."""
    config = config_for(out, **batching)
    directory = PredictionDir(config.directory)
    directory.path.mkdir(parents=True)
    write_rows(directory, rows_of(source), {})
    return directory, config


def answer(out: Path, source: Iterable[Mapping[str, Any] | str], toy: Toy | None = None, **batching: Any) -> bytes:
    """An undisturbed run of one worker, and its output."""
    directory, config = begin(out, source, **batching)
    work(directory, toy or Toy(), WorkSettings(config, CPU))
    return out.read_bytes()
