"""examples/video_clips: its seven programs and its recipe in their small form."""

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
PROGRAMS = ROOT / "examples/video_clips"
RECIPE = PROGRAMS / "video_clips.yaml"


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )


def shown(folder: Path, program: str) -> str:
    """What a program prints."""
    result = run(folder, str(PROGRAMS / program), "--small")
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.long
def test_basic_dataparallel_learns(tmp_path: Path) -> None:
    out = shown(tmp_path, "basic_dataparallel.py")
    assert float(out.split()[-1]) > 0.9, out  # of four directions; 1.0 was seen
    assert (tmp_path / "runs/basic_dataparallel.pth").is_file()


def test_distributed_has_the_same_statistics_on_all_ranks(tmp_path: Path) -> None:
    lines = shown(tmp_path, "distributed.py").splitlines()
    first, second = (dict(re.findall(r"([\w.]+) (-?[\d.e-]+)(?:,|$)", line)) for line in lines)
    for found in (first, second):
        del found["seconds"]
    assert first == second and sum(name.endswith("running_mean") for name in first) == 2, lines
    assert float(first["val_accuracy"]) > 0.9 and first["val_count"] == "128", lines
    assert all(float(value) for name, value in first.items() if name.endswith("running_mean")), "they moved"
    assert (tmp_path / "runs/distributed.pth").is_file()


@pytest.mark.long
def test_automatic_strategy(tmp_path: Path) -> None:
    out = shown(tmp_path, "automatic_strategy.py")
    assert re.findall(r"would be (\w+)", out) == ["single", "dataparallel", "dataparallel", "distributed"]
    assert "chosen: single" in out and float(out.split()[-1]) > 0.85, out


@pytest.mark.long
def test_benchmark(tmp_path: Path) -> None:
    out = shown(tmp_path, "benchmark.py")
    rates = dict(re.findall(r"^(single|dataparallel) +(\d+) .*process_0 \d+ MiB$", out, re.MULTILINE))
    assert set(rates) == {"single", "dataparallel"} and all(map(int, rates.values())), out


@pytest.mark.long
def test_memory_optimization_tells_of_three_ways(tmp_path: Path) -> None:
    # How much each way saves is a GPU's matter: a process's own peak never falls.
    out = shown(tmp_path, "memory_optimization.py")
    assert len(re.findall(r"peak +(\d+) MiB", out)) == 3, out


def test_custom_training_loop(tmp_path: Path) -> None:
    out = shown(tmp_path, "custom_training_loop.py")
    best, again = re.findall(r"held out ([\d.]+), batch \d+, kept", out), re.search(r"([\d.]+) again", out)
    assert again is not None and again[1] == best[-1], out
    assert (tmp_path / "runs/best_model.pth").is_file()


def test_error_handling(tmp_path: Path) -> None:
    out = shown(tmp_path, "error_handling.py")
    assert "out of memory: 16 updates of 32 clips all the same" in out
    assert "strategy 'dataparalel' is none" in out and "say one of auto, single, dataparallel, distributed" in out
    assert "damaged clip: clip 100 is damaged" in out
    again = re.search(r"trained again: loss ([\d.]+)", out)
    assert again is not None and float(again[1]) < 1.3, out  # log 4 is 1.39


def test_the_recipe_trains_and_synchronised_norms_need_gpus(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train = ("-m", "drumline", "train", str(RECIPE), "--set", f"run_dir={folder}")
    refused = run(ROOT, *train, "--set", "parallel={kind: ddp, sync_batch_norm: true}")
    assert refused.returncode == 2 and "torch synchronises BatchNorm on GPUs only" in refused.stderr, refused.stderr
    result = run(ROOT, *train)
    assert result.returncode == 0, result.stdout + result.stderr
    evaluations = [record for record in read_lines(RunDir(folder).metrics) if record["kind"] == "eval"]
    assert evaluations[-1]["accuracy"] > 0.9, evaluations


def test_the_packed_pictures_stand_in_for_the_package(tmp_path: Path) -> None:
    program = "import clips; clips.PACKAGE = clips.Path('none'); print(*clips.Clips('train', 8)[3][0].shape)"
    result = run(PROGRAMS, "-B", "-c", program)
    assert result.stdout.split() == ["1", "6", "20", "20"], result.stderr
