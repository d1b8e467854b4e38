"""`drumline train` in processes that torchrun has started: each becomes a rank of one run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from drumline.rundir import RunDir, read_lines
from tests.cli.real_command import COMMAND, Command, end_of, write_recipe


def torchrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [str(COMMAND.with_name("torchrun")), "--standalone", "--nproc-per-node", "2", "-m", "drumline"]
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(folder)}  # torchrun leaves its folder there
    return subprocess.run(
        [*program, *arguments], cwd=folder, env=variables, capture_output=True, text=True, timeout=240, check=False
    )


def losses(run: RunDir) -> list[tuple[str, int, float]]:
    return [(line["kind"], line["step"], line["loss"]) for line in read_lines(run.metrics) if "loss" in line]


def test_one_run_with_the_numbers_of_our_own_launcher(tmp_path: Path) -> None:
    folder = write_recipe(tmp_path)
    own = Command(folder, "train", "tiny.yaml").wait()
    assert own.status == 0, own.err
    joined = torchrun(folder, "train", "tiny.yaml", "--set", "run_dir=joined")
    assert joined.returncode == 0, joined.stderr
    run = RunDir(folder / "joined")
    assert losses(run) == losses(RunDir(folder / "runs/tiny")) and len(losses(run)) == 4
    assert end_of(run) == {"exit_status": 0, "reason": "done", "message": "", "steps": 6}
    assert "run: joined\n" in joined.stdout and joined.stdout.count("step 2/6") == 1
    assert sorted(path.name for path in run.logs.glob("rank_*.log")) == ["rank_0.log", "rank_1.log"]
    (start,) = (line for line in read_lines(run.events) if line["event"] == "start")
    assert (start["world_size"], start["launcher"]) == (2, "torch elastic")

    longer = ("train", "tiny.yaml", "--set", "run_dir=joined", "--set", "train.max_steps=8")
    again = torchrun(folder, *longer)
    assert again.returncode == 0 and "going on in joined after update 6" in again.stderr, again.stderr
    assert end_of(run)["steps"] == 8
    assert "is finished (done, 8 updates)" in Command(folder, *longer).wait().out


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("hardware.num_processes=3", "asks for 3, but torch elastic started 2 on this machine"),
        ("data.train=[nothing.txt]", "there is no file 'nothing.txt'"),
    ],
)
def test_what_cannot_be_is_said_in_words(tmp_path: Path, override: str, what: str) -> None:
    ended = torchrun(write_recipe(tmp_path), "train", "tiny.yaml", "--set", override)
    assert ended.returncode == 1 and f"{what}" in ended.stderr and "\n  fix: " in ended.stderr
    assert 'File "' not in ended.stderr.partition(what)[0] and not (tmp_path / "runs").exists()
