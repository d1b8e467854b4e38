"""How far a job that predicts is, and what it came to, from its run's directory."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline.jobs.keeper_files import answers_of
from drumline.jobs.records import Job
from drumline.monitor.spending import Spending, total_spending
from drumline.predictions import PredictionDir, Progress, ProgressReader, last_line
from drumline.rundir import read_json

PACE_S = 60.0
"""Over how long a rate is taken while a run goes on."""
SUMMARY_BYTES = 64 * 1024
"""Of a run's summary in a job's result; its long parts are left out where it has more."""
LONG_PARTS = ("confusion", "labels", "lengths", "errors")
"""Parts of a summary that grow with the data, the longest first."""


@dataclass(frozen=True)
class PredictionFacts:
    """A prediction run at one moment; None where its directory does not say."""

    rows_done: int | None = None
    rows_failed: int = 0
    rows_total: int | None = None
    tokens: int = 0
    rows_per_s: float | None = None
    """Over the last PACE_S, as who looks has seen it; of a run that has its answers, over all its workers' time."""
    tokens_per_s: float | None = None
    eta_s: float | None = None
    busy_s: float = 0.0
    """Seconds that its workers computed, all together."""
    elapsed_s: float | None = None
    """From the first line of a worker to the last."""
    spent: Spending = field(default_factory=Spending)
    summary: Mapping[str, Any] = field(default_factory=dict)


class PredictionWatch:
    """Follows the directory of one prediction run; it may not be there yet."""

    def __init__(self, path: Path, steady: Callable[[], float] = time.monotonic) -> None:
        """steady: seconds by a clock that nobody sets."""
        self._directory = PredictionDir(path)
        self._reader = ProgressReader(path)
        self._steady = steady
        self._seen: deque[tuple[float, Progress]] = deque()

    def look(self) -> PredictionFacts:
        """What the run is now. Raises OSError and ValueError for files that cannot be read."""
        place = self._directory
        spent = total_spending(place.run)
        first, last, busy_s, tokens = _times(place)
        elapsed_s = last - first if first is not None and last is not None and last >= first else None
        if place.summary.is_file():
            summary = read_json(place.summary)
            rows, failed = int(summary["num_rows"]), int(summary["num_failed"])
            rate = rows / elapsed_s if elapsed_s else None
            token_rate = tokens / elapsed_s if elapsed_s else None
            return PredictionFacts(rows, failed, rows, tokens, rate, token_rate, 0.0, busy_s, elapsed_s, spent, summary)
        if not place.rows_facts.is_file():
            return PredictionFacts(busy_s=busy_s, elapsed_s=elapsed_s, spent=spent)
        now = self._reader.look()
        rate, token_rate = self._pace(now)
        left = None if now.rows_total is None else max(0, now.rows_total - now.rows_done)
        eta = left / rate if rate and left is not None else None
        return PredictionFacts(
            now.rows_done, now.rows_failed, now.rows_total, now.tokens, rate, token_rate, eta, busy_s, elapsed_s, spent
        )

    def _pace(self, progress: Progress) -> tuple[float | None, float | None]:
        """Rows and tokens a second since PACE_S ago; None before anything was done."""
        now = self._steady()
        if self._seen and progress.rows_done < self._seen[-1][1].rows_done:
            self._seen.clear()  # another run lies there
        self._seen.append((now, progress))
        while len(self._seen) > 2 and self._seen[1][0] <= now - PACE_S:
            self._seen.popleft()
        then, before = self._seen[0]
        took = now - then
        if took <= 0 or progress.rows_done == before.rows_done:
            return None, None
        return (progress.rows_done - before.rows_done) / took, max(0, progress.tokens - before.tokens) / took


def prediction_progress(facts: PredictionFacts) -> dict[str, Any]:
    """How far a run is, as Job.progress has it: what is not known is left out."""
    names = ("rows_done", "rows_total", "rows_per_s", "tokens_per_s", "eta_s", "elapsed_s")
    found = {name: getattr(facts, name) for name in names}
    if facts.rows_done is not None:
        found["rows_failed"] = facts.rows_failed
    found |= {"energy_j": facts.spent.energy_j, "gpu_s": facts.spent.gpu_s}
    return {name: value for name, value in found.items() if value is not None}


def prediction_result(job: Job, folder: Path, facts: PredictionFacts, usage: Mapping[str, Any]) -> dict[str, Any]:
    """What became of a job that predicts, as Job.result has it, but for what it took (usage)."""
    answers = answers_of(folder, job.work.output)
    return {
        "success": job.state == "succeeded",
        "model_path": None,
        "output_path": str(answers) if answers.is_file() else None,
        "rows": facts.rows_done,
        "rows_failed": facts.rows_failed if facts.rows_done is not None else None,
        "summary": bounded_summary(facts.summary) or None,
        "training_time": facts.elapsed_s,
        "best_loss": None,
        "gpu_stats": {
            "gpus": [device for device in job.devices if not device.startswith("cpu:")],
            "gpu_seconds": facts.spent.gpu_s,
            "energy_j": usage["energy_j"],
            "cost": usage["cost"],
        },
        "usage": dict(usage),
    }


def bounded_summary(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A summary that a job's record can hold: its longest parts left out, where it is larger than SUMMARY_BYTES."""
    kept = dict(summary)
    for name in LONG_PARTS:
        if len(json.dumps(kept)) <= SUMMARY_BYTES:
            break
        kept.pop(name, None)
    return kept


def has_begun(run: Path, since_ns: int) -> bool:
    """Whether a prediction run has written something since then, by its file system's clock."""
    place = PredictionDir(run)
    files = [place.rows_facts, place.run.config, place.run.events, place.run.env]
    with suppress(OSError):
        files += list(place.workers.iterdir())
    for file in files:
        with suppress(FileNotFoundError):
            if file.stat().st_mtime_ns >= since_ns:
                return True
    return False


def _times(place: PredictionDir) -> tuple[float | None, float | None, float, int]:
    """When the first and the last worker wrote, seconds of computing, and tokens, of all workers together."""
    first: float | None = None
    last: float | None = None
    busy_s, tokens = 0.0, 0
    for file in sorted(place.workers.glob("*.jsonl")):
        with suppress(FileNotFoundError):
            line, begin = last_line(file), _first_line(file)
            busy_s += float(line.get("busy_s", 0.0))
            tokens += int(line.get("tokens", 0))
            for record in (begin, line):
                if isinstance(at := record.get("time"), int | float):
                    first = at if first is None else min(first, at)
                    last = at if last is None else max(last, at)
    return first, last, busy_s, tokens


def _first_line(file: Path) -> dict[str, Any]:
    with file.open("rb") as lines:
        line = lines.readline(65536)
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
