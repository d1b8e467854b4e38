"""examples/email_sequences: its script and its recipe, for few epochs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from drumline.rundir import RunDir, read_lines

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/email_sequences"
FLOOR = 0.45
"""Of the accuracy after two epochs, 0.62 when this was written; chance is 0.125."""


def run(folder: Path, *command: str) -> str:
    """What it prints."""
    result = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_script_learns_and_reports(tmp_path: Path) -> None:
    out = run(tmp_path, str(FOLDER / "train.py"), "--epochs", "2", "--name", "mails")
    assert "training 3200 texts, mode single_gpu" in out
    found = re.search(r"accuracy ([\d.]+) after 2 epochs; see (.+)", out)
    assert found is not None and float(found[1]) > FLOOR, out
    assert (tmp_path / found[2]).samefile(tmp_path / "runs/mails/report.md")
    report = (tmp_path / found[2]).read_text(encoding="utf-8")
    assert f"| {found[1]} |" in report and "ended by done" in report
    topics = re.findall(r"^\| ([a-z]+) \| ([\d.]+) \|$", report, re.MULTILINE)
    assert len(topics) == 8 and sum(float(share) for _, share in topics) / 8 > FLOOR, report
    assert (tmp_path / "runs/mails/checkpoints").is_dir()


def test_the_recipe_learns_on_two_processes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    recipe = str(FOLDER / "email_sequences.yaml")
    run(ROOT, "-m", "drumline", "train", recipe, "--set", f"run_dir={folder}", "--set", "train.epochs=2")
    evaluations = [record for record in read_lines(RunDir(folder).metrics) if record["kind"] == "eval"]
    assert len(evaluations) == 2 and evaluations[-1]["accuracy"] > FLOOR, evaluations
