"""examples/train_script.py, unchanged, under every launcher: the same losses as under plain `python`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from drumline.rundir import RunDir, read_json, read_lines

SCRIPT = Path(__file__).parents[2] / "examples/train_script.py"
BIN = Path(sys.executable).parent
TOLERANCE = 1e-10
# No GPU for anybody: the promise is about processes, and torchrun and accelerate start as many as they are told.
ENVIRON = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=folder,
        env={**ENVIRON, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


def run_of(folder: Path) -> RunDir:
    [path] = (folder / "runs").glob("train_script-*")
    return RunDir(path)


def losses_of(folder: Path) -> list[float]:
    """Training and evaluation losses that the one run in `folder` logged."""
    return [record["loss"] for record in read_lines(run_of(folder).metrics)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses under plain `python`."""
    folder = tmp_path_factory.mktemp("alone")
    result = run(folder, "python", str(SCRIPT))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("1 process on cpu, single; ")
    return losses_of(folder)


LAUNCHERS = {
    "drumline": ("drumline", "launch", "--set", "hardware.num_processes=2"),
    "torchrun": ("torchrun", "--standalone", "--nproc-per-node", "2"),
    "accelerate": ("accelerate", "launch", "--multi_gpu", "--num_processes", "2"),
}


@pytest.mark.parametrize(
    "launcher", ["torchrun", *(pytest.param(name, marks=pytest.mark.system) for name in ("drumline", "accelerate"))]
)
def test_a_launcher_gives_the_losses_of_python(launcher: str, alone: list[float], tmp_path: Path) -> None:
    result = run(tmp_path, *LAUNCHERS[launcher], str(SCRIPT))
    assert result.returncode == 0, result.stderr
    # One start line: rank 0's alone.
    assert result.stdout.count("2 processes on cpu, ddp; ") == 1
    assert "Traceback" not in result.stderr
    assert len(alone) == 7
    assert losses_of(tmp_path) == pytest.approx(alone, rel=0, abs=TOLERANCE)
    assert read_json(run_of(tmp_path).plan)["world_size"] == 2


@pytest.mark.system
def test_simulated_slurm_gives_the_losses_of_python(alone: list[float], tmp_path: Path) -> None:
    """Two tasks with the variables that srun sets; there is no SLURM here."""
    with socket.socket() as probe:
        # The rendezvous port is 10000 + job id: take an id whose port is free.
        port = next(port for port in range(21_000, 29_000) if probe.connect_ex(("127.0.0.1", port)) != 0)
    step = {
        "SLURM_JOB_ID": str(port - 10_000),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NODEID": "0",
    }
    with ExitStack() as stack:
        tasks = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(SCRIPT)],
                    cwd=tmp_path,
                    env={**ENVIRON, **step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for rank in range(2)
        ]
        output = [task.communicate(timeout=120)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], output
    assert output[0].startswith("2 processes on cpu, ddp; ") and output[1] == ""
    assert losses_of(tmp_path) == pytest.approx(alone, rel=0, abs=TOLERANCE)
    assert read_json(run_of(tmp_path).plan)["reasons"]["world_size"].startswith("slurm started 2")


@pytest.mark.system
def test_a_precision_that_contradicts_the_scripts_is_refused(tmp_path: Path) -> None:
    result = run(tmp_path, "accelerate", "launch", "--num_processes", "1", "--mixed_precision", "bf16", str(SCRIPT))
    assert result.returncode != 0
    message = "accelerate launch says mixed precision bf16, the config says fp32"
    assert f"ConfigError: {message}\n  fix: say it once: drop --mixed_precision" in result.stderr
    assert not (tmp_path / "runs").exists()


FUNCTION = """
import json
import torch
import drumline
from torch import nn
from torch.utils.data import TensorDataset


def loss(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()


def train(lr):
    torch.manual_seed(3)
    x = torch.randn(21, 4, dtype=torch.float64)
    train = drumline.TrainConfig(global_batch=4, epochs=2, lr=lr, precision="fp32")
    config = drumline.RunConfig(train=train, track={"every": 1, "console": False})
    trainer = drumline.Trainer(nn.Linear(4, 1).double(), config, TensorDataset(x, x.sum(1, keepdim=True)), loss=loss)
    return [info.logged["loss"] for info in trainer.steps()]


if __name__ == "__main__":
    print(json.dumps([train(0.01), *drumline.launch(train, (0.01,), num_processes=2)]))
"""


@pytest.mark.system
def test_a_launched_function_trains_as_one_process_does(tmp_path: Path) -> None:
    (tmp_path / "function.py").write_text(FUNCTION)
    result = run(tmp_path, "python", "function.py")
    assert result.returncode == 0, result.stderr
    alone, *ranks = json.loads(result.stdout)
    assert len(alone) == 12 and len(ranks) == 2
    for losses in ranks:
        assert losses == pytest.approx(alone, rel=0, abs=TOLERANCE)
