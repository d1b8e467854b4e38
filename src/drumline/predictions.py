"""What a prediction run keeps in its directory: names, and how far it is. Anybody may read it at any time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumline.rundir import RunDir, read_json

DONE = 255
"""In the state file: all rows of that batch have answers. Less: how often a worker has begun it."""
MOST_STARTS = 200


@dataclass(frozen=True)
class PredictionDir:
    """Names of the files of one prediction run; `run` has those that any run has."""

    path: Path

    @property
    def run(self) -> RunDir:
        """config.yaml (an InferenceConfig), env.json, events.jsonl, logs/, exit.json."""
        return RunDir(self.path)

    @property
    def ledger(self) -> Path:
        """The folder that the workers share."""
        return self.path / "ledger"

    @property
    def rows(self) -> Path:
        """The input, frozen: one JSON line a row."""
        return self.ledger / "rows.jsonl"

    @property
    def offsets(self) -> Path:
        """Where each row's line begins, and the end: int64, little-endian."""
        return self.ledger / "offsets.bin"

    @property
    def rows_facts(self) -> Path:
        """num_rows, num_bad, columns, sources; there once the two above are whole."""
        return self.ledger / "rows.json"

    @property
    def facts(self) -> Path:
        """What all workers agree on: the token budget, the engine, the shared prefix."""
        return self.ledger / "facts.json"

    @property
    def checkpoint(self) -> Path:
        """step: of a run directory the checkpoint that all workers load."""
        return self.ledger / "checkpoint.json"

    @property
    def windows(self) -> Path:
        """One planned window a file, <number>.json."""
        return self.ledger / "windows"

    @property
    def state(self) -> Path:
        """One byte a batch: how often it was begun, or DONE."""
        return self.ledger / "state"

    @property
    def locks(self) -> Path:
        """Its bytes are locked, one by whoever is at a batch; it has no other use, and nobody else may open it."""
        return self.ledger / "locks"

    @property
    def trouble(self) -> Path:
        """Batches that did not go through whole, <number>.json: in which parts they are run, and why."""
        return self.ledger / "trouble"

    @property
    def answers(self) -> Path:
        """One file a worker, one line a batch."""
        return self.ledger / "answers"

    @property
    def workers(self) -> Path:
        """One file a worker, with what it did so far: one line every few seconds."""
        return self.path / "workers"

    @property
    def summary(self) -> Path:
        """Counts over all rows, written with the final file."""
        return self.path / "summary.json"

    def window(self, number: int) -> Path:
        """The file of one planned window."""
        return self.windows / f"{number:06d}.json"


@dataclass(frozen=True)
class Progress:
    """How far a prediction run is."""

    rows_done: int
    rows_failed: int
    """Of those done: rows with an error instead of an answer."""
    rows_total: int | None
    """None while the input is being read."""
    tokens: int
    """Read and written by all workers, over all their lives."""


class ProgressReader:
    """Looks at a run's directory again and again; a window's file is read once."""

    def __init__(self, path: Path) -> None:
        self._directory = PredictionDir(path)
        self._sizes: list[list[int]] = []
        self._bad = 0

    def look(self) -> Progress:
        """Count what is done. Raises OSError where the directory cannot be read."""
        place = self._directory
        total = read_json(place.rows_facts)["num_rows"] if place.rows_facts.is_file() else None
        while (file := place.window(len(self._sizes))).is_file():
            window = read_json(file)
            self._sizes.append([len(batch["rows"]) for batch in window["batches"]])
            self._bad += len(window["problems"])
        state = place.state.read_bytes() if place.state.is_file() else b""
        sizes = [size for window in self._sizes for size in window]
        done = sum(size for size, byte in zip(sizes, state, strict=False) if byte == DONE)
        failed, tokens = self._bad, 0
        for line in map(last_line, sorted(place.workers.glob("*.jsonl"))):
            failed += int(line.get("failed", 0))
            tokens += int(line.get("tokens", 0))
        return Progress(done + self._bad, failed, total, tokens)


def last_line(file: Path) -> dict[str, Any]:
    """The last whole line of a .jsonl file; {} where there is none."""
    with file.open("rb") as lines:
        lines.seek(max(0, file.stat().st_size - 65536))
        for line in reversed(lines.read().split(b"\n")[:-1]):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
    return {}
