"""What a fine-tuning service keeps of each training, and how it reads back what became of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from drumline.jobs.keeper_files import end_of, error_in
from drumline.monitor.runs import RunFacts, RunWatch
from drumline.monitor.spending import total_spending
from drumline.rundir import RunDir, read_json, read_lines, write_json

REQUEST = "request.json"


@dataclass(frozen=True)
class PreparedDataset:
    """Rows in a file that a training can read."""

    path: Path
    """A .jsonl file that its owner alone may read."""
    num_rows: int
    model_name: str
    """Whose tokenizer it was looked at with."""
    max_length: int | None
    """Most tokens of a row; None: chosen by the rows."""
    columns: Mapping[str, str]
    """data.columns."""
    task: str
    """What would be learned from it."""
    reasons: Mapping[str, str]
    """By setting, why a run would be as it would be."""


@dataclass(frozen=True)
class Training:
    """One training of a service: a folder of its own, in which all of it is found again."""

    training_id: str
    folder: Path
    model_name: str
    user_id: int | str | None
    began: float
    """Seconds since 1970."""
    command: tuple[str, ...]
    pid: int | None = None
    pid_began: float | None = None
    """When the kernel says that this process began: a number alone may have become somebody else's."""

    @property
    def run(self) -> RunDir:
        """The run directory."""
        return RunDir(self.folder / "run")

    @property
    def log(self) -> Path:
        """What the command said."""
        return self.folder / "command.log"

    @property
    def exported(self) -> Path:
        """The Hugging Face folder that a training ends in."""
        return self.folder / "model"

    def write(self) -> None:
        """Keep it in its folder."""
        write_json(self.folder / REQUEST, {**asdict(self), "folder": str(self.folder)})

    @classmethod
    def read(cls, folder: Path) -> Training:
        """What `write` kept; the folder may have moved. Raises OSError and ValueError where nothing is kept."""
        values = read_json(folder / REQUEST)
        return cls(**{**values, "folder": folder, "command": tuple(values["command"])})

    def process(self) -> psutil.Process | None:
        """Its process, wherever it was started from; None once that has ended."""
        if self.pid is None:
            return None
        try:
            process = psutil.Process(self.pid)
            ended = process.create_time() != self.pid_began or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        return None if ended else process


@dataclass(frozen=True)
class FineTuned:
    """What became of a training."""

    training_id: str
    success: bool
    status: str
    """done, interrupted (it can be gone on with), failed or killed."""
    message: str
    """Why it ended; empty of one that is done."""
    fix: str
    """What can be done about it."""
    model_path: Path | None
    """A Hugging Face folder that loads anywhere; None where there is none."""
    run_path: Path
    exit_status: int
    """As the command's: 2 of a bad request."""
    training_time_s: float
    best_loss: float | None
    """The lowest of an evaluation after an update, else of a log line."""
    gpu_stats: Mapping[str, Any]
    """gpus (UUIDs), gpu_seconds, energy_j (None: nobody measured it) and cost."""
    training_history: tuple[Mapping[str, Any], ...]
    """Log lines and evaluations, as metrics.jsonl has them."""

    @property
    def log(self) -> Path:
        """What the command said."""
        return self.run_path.parent / "command.log"

    def to_json(self) -> dict[str, Any]:
        """As a service answers."""
        values = asdict(self) | {"run_path": str(self.run_path), "training_time": self.training_time_s}
        return values | {"model_path": None if self.model_path is None else str(self.model_path)}


def outcome(training: Training, facts: RunFacts | None = None) -> FineTuned:
    """What the folder of a training that has ended says of it."""
    run = training.run
    facts = RunWatch(run.path).look() if facts is None else facts
    history = tuple(record for record in read_lines(run.metrics) if record.get("kind") in ("train", "eval"))
    end = read_json(run.exit) if run.exit.exists() else {}
    exit_status = int(end.get("exit_status", 1))
    status = {0: "done", 3: "interrupted"}.get(exit_status, "failed" if end else "killed")
    problem, _, fix = str(end.get("message") or "").partition("\n  fix: ")
    if not end and (told := last_error(training.log)) is not None:
        (problem, fix), status = told, "failed"
        exit_status = 2  # it never came to a run
    elapsed = [float(record["elapsed_s"]) for record in history if "elapsed_s" in record]
    spent = total_spending(run)
    return FineTuned(
        training.training_id,
        success=status == "done",
        status=status,
        message="" if status == "done" else problem or f"its process ended without a word; see {training.log}",
        fix=fix,
        model_path=training.exported if training.exported.is_dir() else None,
        run_path=run.path,
        exit_status=exit_status,
        training_time_s=max(elapsed, default=0.0),
        best_loss=best_loss(history),
        gpu_stats={
            "gpus": list(facts.gpus),
            "gpu_seconds": spent.gpu_s,
            "energy_j": spent.energy_j or None,
            "cost": spent.cost,
        },
        training_history=history,
    )


def best_loss(history: tuple[Mapping[str, Any], ...]) -> float | None:
    """The lowest finite loss of evaluations after an update; of log lines where there was no evaluation."""
    for kind in ("eval", "train"):
        found = [record.get("loss") for record in history if record.get("kind") == kind and record.get("step", 0) > 0]
        losses = [float(loss) for loss in found if isinstance(loss, int | float) and math.isfinite(loss)]
        if losses:
            return min(losses)
    return None


def last_error(log: Path) -> tuple[str, str] | None:
    """Problem and fix of the last error that a command printed; None where it printed none, or much since."""
    try:
        return error_in(end_of(log))
    except OSError:
        return None
