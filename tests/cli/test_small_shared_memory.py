"""A container's 256 kB of /dev/shm, and 256 file handles, in real processes (pytorch #5040, #973, #11201).

A small /dev/shm is a tmpfs in a mount namespace of its own, which only root may make.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from drumline.rundir import read_json, read_lines
from tests.cli.real_command import COMMAND

TRAIN = """
import torch
from torch import nn
from torch.utils.data import Dataset
from drumline import RunConfig, Trainer


class Rows(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, row):
        return {"x": torch.full((10_000,), row / 24), "y": torch.ones(1)}


def loss(model, batch):
    return (model(batch["x"]) - batch["y"]).square().mean()


config = RunConfig.model_validate({
    "run_dir": "run",
    "train": {"global_batch": 8, "epochs": 2, "lr": 1e-4},
    "loader": {"num_workers": 2},
    "track": {"every": 1},
    "checkpoint": {"at_end": False},
})
torch.manual_seed(0)
with Trainer(nn.Linear(10_000, 1), config, Rows(), loss=loss, eval_data=Rows()) as trainer:
    trainer.fit()
"""

READ = """
import torch
from drumline.data.loader import LoaderOptions, Piece, RowLoader
from drumline.data.source import as_source
from drumline.errors import DataError


class Counts:
    def count(self, batch):
        return 1

    def check(self, batch):
        pass


class Rows:
    def __len__(self):
        return 8

    def __getitem__(self, row):
        return torch.zeros(10 if row < 4 else 200_000)


for collate in (None, lambda rows: {"x": [torch.stack(rows)]}):
    loader = RowLoader(as_source(Rows(), collate), Counts(), LoaderOptions(num_workers=2, prefetch_factor=2))
    come = 0
    try:
        for _ in loader.read([Piece((1, row), [row]) for row in range(8)]):
            come += 1
    except DataError as error:
        print(come, error.problem, error.fix, sep="|")
    loader.close()
"""

KEEP = """
import resource
import sys
import torch
from torch import nn
from drumline import RunConfig, Trainer
from drumline.parallel.strategy import Loss

soft, hard, num_rows, num_tensors = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
kept = []


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return num_rows

    def __getitem__(self, row):
        return {"x": torch.full((4,), row / 100), **{str(i): torch.tensor(row) for i in range(num_tensors)}}


class Keeps:
    def count(self, batch):
        return len(batch["x"])

    def check(self, batch):
        pass

    def forward(self, model, batch):
        return model(batch["x"])

    def loss(self, outputs, batch):
        if not torch.is_grad_enabled():
            kept.append(batch)
        return Loss(outputs.square().sum())


config = RunConfig.model_validate({
    "run_dir": "run",
    "train": {"global_batch": 2, "max_steps": 1, "compile": "none"},
    "evaluate": {"batch": 1},
    "loader": {"num_workers": 2, "prefetch_factor": 2},
    "checkpoint": {"at_end": False},
})
with Trainer(nn.Linear(4, 1), config, Rows(), loss=Keeps(), eval_data=Rows()) as trainer:
    metrics = trainer.evaluate()
    predictions = trainer.predict(Rows(), forward=lambda model, batch: {"row": batch["0"], "output": model(batch["x"])})
assert [int(each["row"]) for each in predictions] == list(range(num_rows))
assert [int(batch["0"]) for batch in kept] == list(range(num_rows))
print(metrics["count"], resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def in_small_shared_memory(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command with 256 kB of /dev/shm."""
    mount = 'mount -t tmpfs -o size=256k tmpfs /dev/shm && exec "$@"'
    allowed = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True)
    assert allowed.returncode == 0, f"this test needs root, for a mount namespace: {allowed.stderr}"
    return run(folder, "unshare", "-m", "sh", "-c", mount, "sh", *command)


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_two_ranks_train_in_256_kb_of_shared_memory(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    workers = ("--set", "hardware.device=cpu", "--set", "hardware.num_processes=2")
    ended = in_small_shared_memory(tmp_path, str(COMMAND), "launch", *workers, "train.py")
    assert ended.returncode == 0, ended.stderr
    assert read_json(tmp_path / "run/exit.json")["steps"] == 6
    (event,) = [line for line in read_lines(tmp_path / "run/events.jsonl") if line["event"] == "loader"]
    assert event["num_workers"] == [0, 0]
    for words in ("2 ranks x num_workers=2", "/dev/shm has 256 KiB free", "docker run --shm-size=1g"):
        assert words in event["message"]
    assert ended.stderr.count(f"loader processes do not fit this machine: {event['message']}") == 1
    losses = [line["loss"] for line in read_lines(tmp_path / "run/metrics.jsonl") if "loss" in line]
    assert len(losses) >= 6 and losses[5] < losses[0]


def test_a_batch_larger_than_any_before_it_is_an_error_with_advice(tmp_path: Path) -> None:
    """torch's own collate takes shared memory while it stacks; for any other, sending the batch does."""
    (tmp_path / "read.py").write_text(READ)
    ended = in_small_shared_memory(tmp_path, sys.executable, "read.py")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert len(lines) == 2, ended.stdout
    for line in lines:
        come, problem, fix = line.split("|")
        assert come == "4"
        assert "no room for a batch in shared memory" in problem and "of 256 KiB free" in problem
        assert "--shm-size" in fix and "loader.num_workers" in fix


@pytest.mark.system
def test_2000_batches_that_are_kept_need_no_file_handles(tmp_path: Path) -> None:
    (tmp_path / "keep.py").write_text(KEEP)
    ended = run(tmp_path, sys.executable, "keep.py", "256", "256", "2000", "1")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "2000 (256, 256)"
    assert "do not fit" not in ended.stderr


@pytest.mark.system
@pytest.mark.parametrize(
    ("hard", "done", "limit"),
    [(4096, "the limit on open files is raised to 4096", 4096), (256, "tensors are shared by name", 256)],
)
def test_batches_of_many_tensors_get_their_handles_or_do_without(
    tmp_path: Path, hard: int, done: str, limit: int
) -> None:
    (tmp_path / "keep.py").write_text(KEEP)
    ended = run(tmp_path, sys.executable, "keep.py", "256", str(hard), "40", "60")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == f"40 ({limit}, {hard})"
    assert done in ended.stderr and "with 61 tensors a batch" in ended.stderr
    assert ("docker run --ulimit" in ended.stderr) == (hard == 256)
