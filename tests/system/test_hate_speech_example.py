"""examples/hate_speech on a real chat model: four roads to the same labels."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

SCRIPT = Path(__file__).parents[2] / "examples/hate_speech/four_roads.py"
ASSETS = Path(os.environ.get("DRUMLINE_TEST_ASSETS", "assets"))


def test_four_roads_give_the_same_labels(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--model", str(ASSETS / "smollm2"), "--wordnet", str(ASSETS / "wordnet")]
    command += ["--rows", "24", "--json", "figures.jsonl", "--folder", "runs"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "answers: the same by all roads" in result.stdout
    figures = [json.loads(line) for line in (tmp_path / "figures.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(one["road"], one["rows"], one["answers"]) for one in figures] == [(road, 24, 24) for road in (1, 2, 3, 4)]
    assert all(one["seconds"] > one["busy_s"] > 0 for one in figures)
    assert {one["right"] for one in figures} == {figures[0]["right"]}
    assert 0 < figures[0]["right"] <= 1
    typed = re.findall(r"^  \$ (?:CUDA\S+ )?(\w+)", result.stdout, re.MULTILINE)
    assert typed == ["drumline"] * 5 + ["torchrun"] * 2
    [folder] = (tmp_path / "runs").iterdir()
    answers = [json.loads(line) for line in (folder / "road-4/answers.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {answer["prediction"] for answer in answers} <= {"noun", "verb"}
    assert all(sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-4) for answer in answers)
