"""examples/new_task.py: it runs, its metric is that of the data, on any number of processes; and it is short."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from drumline.rundir import RunDir, read_lines

SCRIPT = Path(__file__).parents[2] / "examples/new_task.py"
BIN = Path(sys.executable).parent


def evaluations(folder: Path, *command: str) -> list[dict[str, Any]]:
    """Of the one run that the command makes."""
    folder.mkdir()
    result = subprocess.run(
        [str(BIN / command[0]), *command[1:], str(SCRIPT)],
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    [path] = (folder / "runs").glob("new_task-*")
    return [record for record in read_lines(RunDir(path).metrics) if record["kind"] == "eval"]


@pytest.mark.system
def test_the_new_task_learns_and_is_measured(tmp_path: Path) -> None:
    alone = evaluations(tmp_path / "alone", "python")
    assert alone[0]["loss"] > 4 * alone[-1]["loss"]
    assert alone[0]["coverage"] < 0.1
    assert alone[-1]["coverage"] == pytest.approx(0.9, abs=0.05)
    two = evaluations(tmp_path / "two", "drumline", "launch", "--set", "hardware.num_processes=2")
    for found, expected in zip(two, alone, strict=True):
        assert found["coverage"] == pytest.approx(expected["coverage"], abs=1e-6)
        assert found["loss"] == pytest.approx(expected["loss"], rel=0, abs=1e-10)


def test_a_task_takes_less_than_40_lines() -> None:
    tree = ast.parse(SCRIPT.read_text(encoding="utf-8"))
    [task] = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert task.end_lineno is not None
    assert task.end_lineno - task.lineno + 1 < 40
