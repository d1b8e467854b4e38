"""Whoever reads metrics.jsonl goes on as before where it has lines about GPUs too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drumline.cli.train import last_step, summary
from drumline.launcher.restarts import step_of
from drumline.rundir import LineWriter, RunDir, read_lines
from tests.unit.engine.training import trainer_of


def gpu_line(step: int, elapsed_s: float) -> dict[str, Any]:
    gpus = {"GPU-a": {"power_w": {"mean": 5.0, "min": 5.0, "max": 5.0, "p95": 5.0}}}
    return {"kind": "gpu", "step": step, "elapsed_s": elapsed_s, "node": "a", "gpus": gpus, "energy_j": 1.0}


def add(run: RunDir, *records: dict[str, Any]) -> None:
    writer = LineWriter(run.metrics)
    for record in records:
        writer.write(record)
    writer.close()


def test_a_resume_drops_those_from_after_the_checkpoint_and_its_time_goes_on(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    with trainer_of(run.path, checkpoint={"every": 2}, train={"epochs": 2, "max_steps": 3}) as trainer:
        trainer.fit()
    add(run, gpu_line(2, 100.0), gpu_line(3, 200.0), gpu_line(3, 300.0))
    run.exit.unlink()
    with trainer_of(run.path, checkpoint={"every": 2}, train={"epochs": 2, "max_steps": 4}) as trainer:
        trainer.fit()
    lines = list(read_lines(run.metrics))
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("train", 1),
        ("train", 2),
        ("gpu", 2),
        ("train", 3),
        ("train", 4),
    ]
    assert lines[2]["elapsed_s"] == 100.0
    assert 100 < lines[3]["elapsed_s"] < 110


def test_the_launcher_and_the_command_count_updates_by_them_too(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    add(run, gpu_line(0, 1.0), {"kind": "train", "step": 7, "loss": 2.0}, gpu_line(7, 2.0))
    assert (step_of(run), last_step(run)) == (7, 7)
    add(run, {"kind": "eval", "step": 7, "loss": 1.5}, gpu_line(7, 3.0))
    assert summary(run).startswith("evaluation loss 1.5000")


@pytest.mark.parametrize("count", [0, 3])
def test_a_run_that_was_killed_before_its_first_line_begins_anew(tmp_path: Path, count: int) -> None:
    run = RunDir(tmp_path / "run")
    with trainer_of(run.path, train={"epochs": 1}) as trainer:
        trainer.fit()
    for file in (run.exit, run.metrics):
        file.unlink()
    add(run, *(gpu_line(0, float(number)) for number in range(count)))
    with trainer_of(run.path, train={"epochs": 1}) as trainer:
        trainer.fit()
    kinds = [line["kind"] for line in read_lines(run.metrics)]
    assert kinds == ["gpu"] * count + ["train"] * 3
