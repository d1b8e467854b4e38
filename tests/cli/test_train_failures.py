"""`drumline train` and `drumline launch` as a user sees them fail: soon, on all ranks, with one message at the end.

Each launch here starts real ranks and takes some six seconds on two idle cores, nearly all of it to import torch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drumline.manifest import check
from drumline.rundir import RunDir, read_lines
from tests.cli.real_command import (
    COMMAND,
    LIMIT_S,
    Command,
    Ended,
    end_of,
    failed_at,
    launch_of,
    processes_of,
    worker_of,
    write_recipe,
)

FOREVER = (
    *("--set", "train.max_steps=1000000", "--set", "evaluate.every=end", "--set", "checkpoint.every=null"),
    *("--set", "faults.max_restarts=0"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_recipe(tmp_path)


def train(folder: Path, *settings: str) -> Ended:
    return Command(folder, "train", "tiny.yaml", *(part for text in settings for part in ("--set", text))).wait()


def check_end(ended: Ended, launch: RunDir, since: float, last: tuple[str, str], tracebacks: int = 0) -> None:
    """The message is last, nobody else's traceback is there, and all have ended within the limit after `since`."""
    late = ended.ended - since
    print(f"{last[0]}: {late:.1f} s after the failure, {ended.took_s:.1f} s in all")
    for line, expected in zip(ended.last_lines, last, strict=True):
        assert expected in line, ended.err
    assert ended.err.count("Traceback (most recent call last)") == tracebacks, ended.err
    assert late < LIMIT_S
    assert processes_of(launch) == []


@pytest.mark.parametrize(
    ("setting", "problem", "fix"),
    [
        ("train.global_bach=3", "train.global_bach: there is no such key", "did you mean train.global_batch?"),
        ("train.precision=tf32", "tf32 is a mode of NVIDIA GPUs", "fix:"),
        ("run_dir=taken", "the run directory taken exists already", "give the run another name (--set name=...)"),
    ],
)
def test_what_can_be_refused_at_once_starts_nobody(setting: str, problem: str, fix: str, folder: Path) -> None:
    (folder / "taken").mkdir()
    before = sorted(folder.rglob("*"))
    ended = train(folder, setting)
    print(f"{problem}: {ended.took_s:.1f} s in all")
    assert (ended.status, ended.out) == (2, "")
    first, *_, last = ended.err.splitlines()
    assert first.startswith("error: ")
    assert problem in ended.err and fix in last
    assert ended.took_s < LIMIT_S
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("file", "content", "problem", "fix"),
    [
        ("absent.txt", None, "failed: data.train: there is no file 'absent.txt'", "fix: correct the name:"),
        ("empty.txt", b"", "failed: data.train: its file is empty", "fix: name files with text"),
        (
            "latin.txt",
            b"caf\xe9 \xc3\xa9",
            "failed: latin.txt is not UTF-8 text: byte 0xe9 at offset 3",
            "fix: convert it",
        ),
    ],
)
def test_data_that_no_rank_can_read(file: str, content: bytes | None, problem: str, fix: str, folder: Path) -> None:
    if content is not None:
        (folder / file).write_bytes(content)
    ended = train(folder, f"data.train=['{file}']")
    run = RunDir(folder / "runs/tiny")
    assert ended.status == 2
    check_end(ended, run, failed_at(run), (problem, fix))
    end = end_of(run)
    assert (end["exit_status"], end["reason"], end["steps"]) == (2, "failed", 0)
    assert problem in end["message"] and fix in end["message"]
    [event] = read_lines(run.events)
    assert (event["event"], event["message"]) == ("failed", end["message"])
    assert not run.metrics.exists()
    report = Command(folder, "report", "runs/tiny").wait()
    assert (report.status, report.err) == (0, "")
    assert problem.removeprefix("failed: ").replace("'", "&#x27;") in (run.path / "report/index.html").read_text()


SCRIPT = """
import os, sys
import torch
from drumline import RunConfig, TrainConfig, Trainer
from drumline.tasks.language_modelling import LanguageModelling

mode, rank = sys.argv[1], int(os.environ["RANK"])


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, row):
        ids = torch.arange(8) + row % 8
        if mode == "label" and row == 21:
            ids[7] = 300
        return {"input_ids": ids[:7], "labels": ids[1:], "row": row}


class Fails(LanguageModelling):
    def loss(self, outputs, batch):
        loss = super().loss(outputs, batch)
        if batch["row"].max() < 16:  # the third update has rows 16 to 23
            return loss
        if mode == "exception" and rank == 1:
            raise RuntimeError("boom in the loss")
        return loss._replace(total=loss.total * float("nan")) if mode == "nan" else loss


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(16, 4), torch.nn.Linear(4, 16))
config = RunConfig(
    name="tiny",
    train=TrainConfig(global_batch=8, epochs=1, shuffle=False),
    loader={"num_workers": 1},
    track={"every": 1},
)
Trainer(model, config, Rows(), loss=Fails(16)).fit()
"""


@pytest.mark.parametrize(
    ("mode", "problem", "fix", "tracebacks", "steps"),
    [
        pytest.param(
            *(
                "label",
                "rank 1 failed: labels[1, 6] is 300; allowed are 0 to 15",
                "fix: number the classes from 0",
                0,
                1,
            ),
            marks=pytest.mark.system,
        ),
        pytest.param(
            *("nan", "failed: the gradient of update 3 is NaN", "fix: lower train.lr", 0, 2), marks=pytest.mark.system
        ),
        ("exception", "rank 1 failed: RuntimeError: boom in the loss (fails.py:", "rank_1.log", 1, 2),
    ],
)
def test_a_script_that_fails_on_the_way(
    mode: str, problem: str, fix: str, tracebacks: int, steps: int, tmp_path: Path
) -> None:
    (tmp_path / "fails.py").write_text(SCRIPT)
    two = ("--set", "hardware.num_processes=2", "--set", "hardware.device=cpu")
    ended = Command(tmp_path, "launch", *two, "fails.py", mode).wait()
    run, launch = RunDir(tmp_path / "runs/tiny"), launch_of(tmp_path)
    assert ended.status == 1
    check_end(ended, launch, failed_at(launch), (problem, fix), tracebacks)
    end = end_of(run)
    assert (end["exit_status"], end["reason"], end["steps"]) == (1, "failed", steps)
    assert problem in end["message"]
    *_, event = read_lines(run.events)
    assert event["event"] == "failed" and problem in event["message"]


@pytest.mark.system
def test_torchruns_summary_names_the_failure(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(SCRIPT)
    command = [str(COMMAND.with_name("torchrun")), "--standalone", "--nproc-per-node", "2", "fails.py", "exception"]
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(tmp_path)}  # torchrun leaves its folder there
    ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    _, _, summary = ended.stderr.partition("Root Cause (first observed failure)")
    # Without an error file it would be: "To enable traceback see https://pytorch.org/..."
    assert "RuntimeError: boom in the loss" in summary, ended.stderr
    assert end_of(RunDir(tmp_path / "runs/tiny"))["message"].startswith("rank 1 failed: RuntimeError: boom in the loss")


@pytest.fixture
def training(folder: Path) -> Iterator[tuple[Command, RunDir]]:
    """A run without end that has reached its first log line."""
    run = RunDir(folder / "runs/tiny")
    with Command(folder, "train", "tiny.yaml", *FOREVER) as command:
        command.reaches(lambda: list(read_lines(run.metrics)))
        yield command, run


def test_a_killed_rank_is_named(training: tuple[Command, RunDir], folder: Path) -> None:
    command, run = training
    killed = time.time()
    worker_of(run, 1).send_signal(signal.SIGKILL)
    ended = command.wait()
    assert ended.status == 1
    problem = "rank 1 failed: killed by signal 9, SIGKILL (out of memory killer?)"
    check_end(ended, run, killed, (problem, "fix: see runs/tiny/logs/rank_1.log"))
    end = end_of(run)
    assert (end["exit_status"], end["reason"]) == (1, "failed")
    assert end["message"].startswith(problem) and end["steps"] > 0
    *_, event = read_lines(run.events)
    assert (event["event"], event["message"]) == ("failed", end["message"])
    report = Command(folder, "report", "runs/tiny").wait()
    assert report.out.startswith("failed, ")
    assert "killed by signal 9" in (run.path / "report/index.html").read_text()


def test_ctrl_c_ends_a_run_as_interrupted(training: tuple[Command, RunDir]) -> None:
    command, run = training
    sent = time.time()
    command.send(signal.SIGINT)
    ended = command.wait()
    print(f"Ctrl-C: {ended.ended - sent:.1f} s after the signal")
    assert ended.ended - sent < LIMIT_S
    assert ended.status == 3
    assert ended.err.splitlines() == [
        "WARNING drumline: interrupted by SIGINT: the run is saved and ends (a second SIGINT or SIGTERM: at once)",
        "interrupted by SIGINT; the run is saved, and the same command goes on with it",
    ]
    assert processes_of(run) == []
    end = end_of(run)
    assert (end["exit_status"], end["reason"], end["message"]) == (3, "interrupted", "interrupted by SIGINT")
    assert end["steps"] > 0 and check(run.checkpoint_of(end["steps"])) == []
    *_, event = read_lines(run.events)
    assert (event["event"], event["step"]) == ("interrupted", end["steps"])
