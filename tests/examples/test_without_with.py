"""A script that never closes its trainer, in two processes that meet at an address: nobody waits for anybody."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = """
import sys, torch
from torch.utils.data import TensorDataset
from drumline import RunConfig, Trainer

torch.manual_seed(0)
x = torch.randn(64, 8)
config = RunConfig.model_validate({"train": {"global_batch": 8, "epochs": 1}, "track": {"console": False}})
trainer = Trainer(torch.nn.Linear(8, 1), config, TensorDataset(x, x[:, :1]),
                  loss=lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1]))
for info in trainer.steps():
    if sys.argv[1:] == ["fail"] and info.step == 3 and trainer.world.rank == 1:
        raise ValueError("planted")
print("steps", info.step)
"""


def run_two(folder: Path, *arguments: str) -> list[tuple[int | None, str, str]]:
    """Status, output and errors of both ranks."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            cwd=folder,
            env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank), "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    outputs = [rank.communicate(timeout=60) for rank in ranks]
    return [(rank.returncode, *output) for rank, output in zip(ranks, outputs, strict=True)]


def test_a_good_run_ends_without_a_word(tmp_path: Path) -> None:
    assert run_two(tmp_path) == [(0, "steps 8\n", "")] * 2


def test_an_error_in_the_script_ends_both(tmp_path: Path) -> None:
    began = time.monotonic()
    (status_0, _, errors_0), (status_1, _, errors_1) = run_two(tmp_path, "fail")
    assert time.monotonic() - began < 30  # two imports of torch on busy cores included
    assert (status_0, status_1) == (1, 1)
    assert "rank 1 failed: ValueError: planted" in errors_0
    assert "ValueError: planted" in errors_1
