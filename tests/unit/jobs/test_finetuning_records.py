"""What is read back of a training."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from drumline.jobs.finetuning_records import Training, best_loss, last_error, outcome
from drumline.rundir import RunDir, write_json


def training(folder: Path, **values: Any) -> Training:
    """One that was kept in this folder."""
    found = Training("ft-1", folder, "gpt2", 123, 1000.0, ("drumline", "finetune"), **values)
    found.write()
    return found


def write_run(run: RunDir, lines: list[dict[str, Any]], end: dict[str, Any] | None) -> None:
    """A run directory with these lines and this end."""
    run.logs.mkdir(parents=True)
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_json(run.plan, {"gpus": ["GPU-a"], "world_size": 1})
    write_json(run.logs / "spent_here.json", {"energy_j": 50.0, "gpu_s": 3.0, "cost": 0.25})
    if end is not None:
        write_json(run.exit, end)


LINES: list[dict[str, Any]] = [
    {"kind": "eval", "step": 0, "loss": 1.0, "elapsed_s": 0.5, "time": 1.0},
    {"kind": "train", "step": 1, "loss": 0.5, "elapsed_s": 1.0, "time": 2.0},
    {"kind": "gpu", "time": 2.5},
    {"kind": "eval", "step": 2, "loss": 2.5, "elapsed_s": 2.0, "time": 3.0},
    {"kind": "eval", "step": 4, "loss": 2.0, "elapsed_s": 4.0, "time": 4.0},
]


def test_it_is_read_as_it_was_written_also_from_another_place(tmp_path: Path) -> None:
    kept = training(tmp_path)
    assert Training.read(tmp_path) == kept
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert Training.read(moved).run.path == moved / "run"


def test_a_training_that_is_done(tmp_path: Path) -> None:
    kept = training(tmp_path)
    write_run(kept.run, LINES, {"exit_status": 0, "reason": "done", "message": "", "steps": 4})
    kept.exported.mkdir()
    found = outcome(kept)
    assert (found.success, found.status, found.message, found.best_loss) == (True, "done", "", 2.0)
    assert (found.model_path, found.training_time_s) == (tmp_path / "model", 4.0)
    assert found.gpu_stats == {"gpus": ["GPU-a"], "gpu_seconds": 3.0, "energy_j": 50.0, "cost": 0.25}
    assert [line["step"] for line in found.training_history] == [0, 1, 2, 4]
    answered = json.loads(json.dumps(found.to_json()))
    assert answered["training_time"] == 4.0 and answered["model_path"] == str(tmp_path / "model")


@pytest.mark.parametrize(
    ("end", "status", "exit_status", "message", "fix"),
    [
        ({"exit_status": 3, "message": "interrupted by SIGTERM"}, "interrupted", 3, "interrupted by SIGTERM", ""),
        ({"exit_status": 1, "message": "it is NaN\n  fix: lower the rate"}, "failed", 1, "it is NaN", "lower the rate"),
        ({"exit_status": 2, "message": "no such file\n  fix: name one"}, "failed", 2, "no such file", "name one"),
        (None, "killed", 1, "its process ended without a word; see ", ""),
    ],
)
def test_a_training_that_ended_otherwise(
    tmp_path: Path, end: dict[str, Any] | None, status: str, exit_status: int, message: str, fix: str
) -> None:
    kept = training(tmp_path)
    write_run(kept.run, LINES[:2], end)
    found = outcome(kept)
    assert (found.success, found.status, found.exit_status, found.fix) == (False, status, exit_status, fix)
    assert found.message.startswith(message) and found.model_path is None


def test_a_command_that_never_came_to_a_run_says_why_in_its_log(tmp_path: Path) -> None:
    kept = training(tmp_path)
    kept.log.write_text("a warning\nerror: first\n  fix: one\nerror: there is no file\n  fix: correct the name\n")
    found = outcome(kept)
    assert (found.status, found.exit_status) == ("failed", 2)
    assert (found.message, found.fix) == ("there is no file", "correct the name")


def test_a_log_without_an_error_has_none(tmp_path: Path) -> None:
    assert last_error(tmp_path / "absent.log") is None
    (tmp_path / "a.log").write_text("step 1 | an error: of 3\n")
    assert last_error(tmp_path / "a.log") is None


def test_the_best_loss_is_of_evaluations_after_an_update_else_of_log_lines() -> None:
    assert best_loss(tuple(LINES)) == 2.0
    assert best_loss(tuple(LINES[:3])) == 0.5
    assert best_loss(tuple(LINES[:1])) is None
    assert best_loss(({"kind": "train", "step": 1, "loss": float("nan")},)) is None


def test_a_process_is_known_by_when_it_began(tmp_path: Path) -> None:
    began = psutil.Process().create_time()
    found = training(tmp_path, pid=os.getpid(), pid_began=began).process()
    assert found is not None and found.pid == os.getpid()
    assert training(tmp_path, pid=os.getpid(), pid_began=began - 1).process() is None
    assert training(tmp_path).process() is None
