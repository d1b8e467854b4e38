"""What a prediction run's directory tells: how far it is, how fast its workers were, and what its answers came to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from drumline.errors import ConfigError
from drumline.predictions import PredictionDir, ProgressReader
from drumline.rundir import read_json, read_lines
from drumline.track.figures import Record
from drumline.track.units import as_finite

PAUSE_S = 30.0
"""Longer without a line of any worker, the run was stopped: that time is passed over."""
MOST_BINS = 120
"""Stretches of time over which throughput is drawn."""
LEAST_BIN_S = 2.0
"""Workers write a line about so often."""


@dataclass(frozen=True)
class PredictionRecords:
    """All that a report is made of."""

    name: str
    config: str
    settings: Record
    end: Record
    summary: Record
    """Empty before the answers are written out."""
    env: Record
    events: Sequence[Record]
    workers: Mapping[str, Sequence[Record]]
    """Lines by worker, each with sums since that worker began."""
    rows_done: int
    rows_failed: int
    rows_total: int | None
    notes: Sequence[str]
    """What could not be read."""


@dataclass(frozen=True)
class PredictionNumbers:
    """The headline numbers; None where the directory does not tell."""

    status: str
    exit_status: int | None
    message: str
    rows_done: int
    rows_failed: int
    rows_total: int | None
    worked_s: float | None
    """While any worker wrote."""
    rows_per_s: float | None
    tokens_per_s: float | None
    new_tokens: int
    num_workers: int
    """Of all attempts together."""
    busy_share: float | None
    """Of the time that workers were there, what they computed."""
    accuracy: float | None
    f1_macro: float | None
    f1_micro: float | None


@dataclass(frozen=True)
class Throughput:
    """Rows a second by worker, over stretches of time of the same length."""

    seconds: tuple[float, ...]
    """The middle of each stretch, since the beginning, pauses passed over."""
    rows_per_s: Mapping[str, tuple[float, ...]]


def is_prediction(path: Path) -> bool:
    """Whether a directory is a prediction run's."""
    return PredictionDir(path).ledger.is_dir()


def read_prediction(path: Path) -> PredictionRecords:
    """Read a prediction run's directory; a broken file costs its own part only. Raises ConfigError for no such one."""
    place, notes = PredictionDir(path), list[str]()
    if not is_prediction(path):
        raise ConfigError(f"{path} is no prediction run: it has no {place.ledger.name}", "give the run's own directory")
    config = place.run.config.read_text(encoding="utf-8", errors="replace") if place.run.config.exists() else ""
    summary = _document(place.summary, notes)
    done, failed, total = _progress(path, summary, notes)
    return PredictionRecords(
        name=path.resolve().name.removesuffix(".run"),
        config=config,
        settings=_settings(config, notes),
        end=_document(place.run.exit, notes),
        summary=summary,
        env=_document(place.run.env, notes),
        events=_lines(place.run.events, notes),
        workers={file.stem: _lines(file, notes) for file in sorted(place.workers.glob("*.jsonl"))},
        rows_done=done,
        rows_failed=failed,
        rows_total=total,
        notes=notes,
    )


def summarise_prediction(records: PredictionRecords) -> PredictionNumbers:
    """The headline numbers of a run's records."""
    exit_status = records.end.get("exit_status")
    known: dict[Any, str] = {0: "done", 3: "interrupted"}
    status = known.get(exit_status, "failed") if records.end else "no end on record: it is still running, or was killed"
    clock = Clock(records.workers)
    last = [lines[-1] for lines in records.workers.values() if lines]
    tokens, new_tokens, rows = (
        sum(_whole(line.get(name)) for line in last) for name in ("tokens", "new_tokens", "rows")
    )
    lives = [clock.at(lines[-1]) - clock.at(lines[0]) for lines in records.workers.values() if lines]
    busy = sum(as_finite(line.get("busy_s")) or 0.0 for line in last)
    f1 = records.summary.get("f1")
    scores = f1 if isinstance(f1, Mapping) else {}
    return PredictionNumbers(
        status=str(records.end.get("reason") or status),
        exit_status=exit_status if isinstance(exit_status, int) else None,
        message=str(records.end.get("message", "")),
        rows_done=records.rows_done,
        rows_failed=records.rows_failed,
        rows_total=records.rows_total,
        worked_s=clock.length or None,
        rows_per_s=rows / clock.length if clock.length else None,
        tokens_per_s=tokens / clock.length if clock.length else None,
        new_tokens=new_tokens,
        num_workers=len(records.workers),
        busy_share=min(1.0, busy / sum(lives)) if sum(lives) > 0 else None,
        accuracy=as_finite(records.summary.get("accuracy")),
        f1_macro=as_finite(scores.get("macro")),
        f1_micro=as_finite(scores.get("micro")),
    )


class Clock:
    """Seconds since a run began, over all its workers and attempts, without the time between attempts."""

    def __init__(self, workers: Mapping[str, Sequence[Record]]) -> None:
        times = sorted({time for lines in workers.values() for line in lines if (time := _time(line)) is not None})
        self._seconds = dict.fromkeys(times[:1], 0.0)
        for before, time in pairwise(times):
            gap = time - before
            self._seconds[time] = self._seconds[before] + (0.0 if gap > PAUSE_S else gap)
        self.length = self._seconds[times[-1]] if times else 0.0

    def at(self, line: Record) -> float:
        """When a worker's line was written; 0 for one without a time."""
        time = _time(line)
        return 0.0 if time is None else self._seconds[time]


def throughput(workers: Mapping[str, Sequence[Record]]) -> Throughput:
    """Rows a second by worker: what came between two lines of it, spread evenly over the time between them."""
    clock = Clock(workers)
    if not clock.length:
        return Throughput((), {})
    num = int(max(1, min(MOST_BINS, clock.length // LEAST_BIN_S)))
    width = clock.length / num
    found: dict[str, tuple[float, ...]] = {}
    for name, lines in workers.items():
        rows = [0.0] * num
        for before, line in pairwise(lines):
            new = _whole(line.get("rows")) - _whole(before.get("rows"))
            for index, share in _shares(clock.at(before), clock.at(line), width, num):
                rows[index] += new * share
        found[name] = tuple(each / width for each in rows)
    return Throughput(tuple((index + 0.5) * width for index in range(num)), found)


def _shares(start: float, end: float, width: float, num: int) -> Iterator[tuple[int, float]]:
    """Which stretches a time overlaps, and with which share of it."""
    first, last = (min(num - 1, int(time // width)) for time in (start, end))
    if end <= start:
        yield first, 1.0
        return
    for index in range(first, last + 1):
        overlap = min(end, (index + 1) * width) - max(start, index * width)
        if overlap > 0:
            yield index, overlap / (end - start)


def _progress(path: Path, summary: Record, notes: list[str]) -> tuple[int, int, int | None]:
    if summary:
        rows = _whole(summary.get("num_rows"))
        return rows, _whole(summary.get("num_failed")), rows
    try:
        found = ProgressReader(path).look()
    except (OSError, ValueError, KeyError, TypeError) as error:
        notes.append(f"how far it is cannot be read: {error}")
        return 0, 0, None
    return found.rows_done, found.rows_failed, found.rows_total


def _document(path: Path, notes: list[str]) -> Record:
    if not path.exists():
        return {}
    try:
        document = read_json(path)
    except (OSError, ValueError) as error:
        notes.append(f"{path.name} cannot be read: {error}")
        return {}
    return document if isinstance(document, dict) else {"value": document}


def _lines(path: Path, notes: list[str]) -> list[Record]:
    records: list[Record] = []
    if not path.exists():
        return records
    try:
        records += (record for record in read_lines(path) if isinstance(record, dict))
    except ValueError as error:
        notes.append(f"{path.name} is broken after {len(records)} records, the rest is not shown: {error}")
    return records


def _settings(config: str, notes: list[str]) -> Record:
    try:
        document = yaml.safe_load(config)
    except yaml.YAMLError as error:
        notes.append(f"config.yaml cannot be read: {error}")
        return {}
    return document if isinstance(document, dict) else {}


def _time(line: Record) -> float | None:
    return as_finite(line.get("time"))


def _whole(value: Any) -> int:
    number = as_finite(value)
    return 0 if number is None else int(number)
