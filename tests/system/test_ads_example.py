"""examples/ads on a tiny model: it trains, and answers before and after."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_models import save_llama

pytestmark = pytest.mark.system

SCRIPT = Path(__file__).parents[2] / "examples/ads/write_ads.py"


def test_it_trains_and_compares(tmp_path: Path) -> None:
    model = save_llama(tmp_path / "llama")
    command = [sys.executable, str(SCRIPT), "--model", str(model), "--epochs", "2", "--briefs", "1"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "112 rows for language_modelling" in result.stdout
    found = re.search(r"best loss ([\d.]+) after \d+ s; the model is in (.+)", result.stdout)
    assert found is not None and float(found[1]) < 5.8, result.stdout  # log 320 is 5.77
    assert (Path(found[2]) / "model.safetensors").is_file()
    assert len(re.findall(r"^  (before|after): ", result.stdout, re.MULTILINE)) == 2
    report = (tmp_path / "runs/ads/report.md").read_text(encoding="utf-8")
    assert found[0] in report and len(re.findall(r"^> \*\*(before|after)\*\*: ", report, re.MULTILINE)) == 2
