"""The worked examples and `drumline quickstart` on whatever GPUs there are. Run: pytest -m gpu."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from drumline.rundir import RunDir, read_lines

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DRUMLINE = ("-m", "drumline")


def shown(folder: Path, *command: str) -> str:
    """What it prints; started in a folder, with all GPUs."""
    result = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_quickstart_checks_every_rank(tmp_path: Path) -> None:
    num = torch.cuda.device_count()
    lines = shown(tmp_path, *DRUMLINE, "quickstart", "--check").splitlines()
    checks = {line.split()[1]: line for line in lines if line.startswith(("ok", "FAIL"))}
    assert all(line.startswith("ok ") for line in checks.values()), lines
    assert {"devices", "parameters", "speed"} <= set(checks), lines
    if num > 1:
        assert "every sum is right" in checks["all-reduce"] and "nccl" in checks["all-reduce"], lines
        assert f"equal on {num} ranks" in checks["parameters"], lines


def test_quickstart_trains_and_measures(tmp_path: Path) -> None:
    trained = re.search(
        r"evaluation loss ([\d.]+) before, ([\d.]+) after", shown(tmp_path, *DRUMLINE, "quickstart", "--epochs", "1")
    )
    assert trained is not None and float(trained[2]) < float(trained[1])
    out = shown(tmp_path, *DRUMLINE, "quickstart", "--benchmark")
    assert re.search(rf"^{torch.cuda.device_count()} device\(s\): [\d.]+ ms an update", out, re.MULTILINE), out


@pytest.mark.parametrize("program", ["basic_dataparallel", "automatic_strategy"])
def test_clips_are_told_apart(tmp_path: Path, program: str) -> None:
    out = shown(tmp_path, str(EXAMPLES / f"video_clips/{program}.py"), "--small", "--epochs", "3")
    assert float(out.split()[-1]) > 0.6, out  # of four directions


def test_ranks_of_the_clips_agree(tmp_path: Path) -> None:
    out = shown(tmp_path, str(EXAMPLES / "video_clips/distributed.py"), "--small")
    ranks = [re.sub(r"^rank \d+|seconds [\d.]+", "", line) for line in out.splitlines() if line.startswith("rank ")]
    assert len(ranks) == torch.cuda.device_count() and len(set(ranks)) == 1, out


def test_checkpointing_and_small_passes_need_less_memory(tmp_path: Path) -> None:
    out = shown(tmp_path, str(EXAMPLES / "video_clips/memory_optimization.py"), "--small")
    passes, again, whole = (int(peak) for peak in re.findall(r"peak +(\d+) MiB", out))
    assert passes < again < whole, out


@pytest.mark.parametrize("program", ["benchmark", "custom_training_loop", "error_handling"])
def test_other_programs_end(tmp_path: Path, program: str) -> None:
    assert shown(tmp_path, str(EXAMPLES / f"video_clips/{program}.py"), "--small")


def test_batch_norm_is_synchronised(tmp_path: Path) -> None:
    recipe = str(EXAMPLES / "video_clips/video_clips.yaml")
    settings = ("--set", f"run_dir={tmp_path / 'run'}", "--set", "parallel={kind: ddp, sync_batch_norm: true}")
    gpus = ("--set", f"hardware.num_processes={torch.cuda.device_count()}")
    shown(ROOT, *DRUMLINE, "train", recipe, *settings, *gpus)
    evaluations = [record for record in read_lines(RunDir(tmp_path / "run").metrics) if record["kind"] == "eval"]
    assert evaluations[-1]["accuracy"] > 0.9, evaluations


def test_mails_are_classified(tmp_path: Path) -> None:
    out = shown(tmp_path, str(EXAMPLES / "email_sequences/train.py"), "--small")
    mode = "single_gpu" if torch.cuda.device_count() == 1 else "data_parallel"
    assert f"mode {mode}" in out, out
    found = re.search(r"accuracy ([\d.]+) after 3 epochs", out)
    assert found is not None and float(found[1]) > 0.45, out  # chance is 0.125


def test_the_darkroom_is_learned_in_its_small_form(tmp_path: Path) -> None:
    out = shown(EXAMPLES / "darkroom", "train.py", "small", "--set", f"run_dir={tmp_path / 'run'}")
    assert "step 300/300" in out, out
