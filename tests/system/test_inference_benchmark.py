"""benchmarks/inference.py in its smallest shapes: every mode runs, and says what it measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

SCRIPT = Path(__file__).parents[2] / "benchmarks/inference.py"


@pytest.mark.parametrize(
    ("arguments", "modes", "rows"),
    [
        (["generate", "--shape", "tiny"], ["drumline", "drumline:static", "batch:4", "continuous"], 16),
        (["classify", "--shape", "tiny_encoder", "--rows", "40"], ["drumline", "batch:32"], 40),
    ],
)
def test_it_measures(tmp_path: Path, arguments: list[str], modes: list[str], rows: int) -> None:
    out = tmp_path / "lines.jsonl"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(SCRIPT), *arguments, "--out", str(out)]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [line["mode"] for line in lines] == modes
    assert all(line["rows"] == rows and line["rows_per_s"] > 0 and line["device"] == "cpu" for line in lines)
