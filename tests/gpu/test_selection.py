"""Which GPUs are taken, on real ones: a planted stranger keeps its GPU out, and a named GPU is the one that is used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from drumline import RunConfig, Trainer
from drumline.hardware.inventory import detect
from drumline.launcher.spec import MARK
from tests.ranks.training import MaskedRegression, MaskedRows, make_model

pytestmark = pytest.mark.gpu

HOLDS = """
import pathlib, sys, time
import torch
held = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
pathlib.Path(sys.argv[1]).touch()
time.sleep(120)
"""
ASKS = """
import json, sys
import pynvml
from drumline.errors import HardwareError
from drumline.hardware.selection import select
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByUUID(sys.argv[1])
pids = [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
try:
    found = select()
    print(json.dumps([pids, list(found.uuids), found.left_out.get(sys.argv[1], "")]))
except HardwareError as error:
    print(json.dumps([pids, [], error.problem]))
"""


@contextmanager
def stranger(uuid: str, folder: Path) -> Iterator[None]:
    """Somebody who computes on a GPU, and is neither of this process's family nor of any launch."""
    environ = {name: value for name, value in os.environ.items() if name != MARK}
    ready = folder / "ready"
    # The shell ends at once, so that its child is nobody's of ours.
    script = f'"{sys.executable}" -c "$0" "{ready}" > /dev/null 2>&1 & echo $!'
    environ |= {"CUDA_VISIBLE_DEVICES": uuid}
    shell = subprocess.run(["sh", "-c", script, HOLDS], env=environ, capture_output=True, text=True, check=True)
    pid = int(shell.stdout)
    try:
        limit = time.monotonic() + 90
        while not ready.exists():
            assert time.monotonic() < limit
            time.sleep(0.05)
        yield
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_planted_stranger_keeps_its_gpu_out_with_the_pid_in_the_reason(tmp_path: Path) -> None:
    uuid = detect().gpus[-1].uuid
    with stranger(uuid, tmp_path):
        # In a process of its own, to which this one's contexts are a stranger's as well.
        asked = subprocess.run([sys.executable, "-c", ASKS, uuid], capture_output=True, text=True, check=True)
    pids, uuids, reason = json.loads(asked.stdout)
    assert uuid not in uuids
    assert "taken: " in reason
    assert [pid for pid in pids if f"process {pid}" in reason]


def test_plain_python_trains_on_the_gpu_that_is_named(tmp_path: Path) -> None:
    gpu = detect().gpus[-1]
    config = RunConfig.model_validate(
        {
            "run_dir": tmp_path / "run",
            "train": {"global_batch": 4, "max_steps": 1, "precision": "fp32"},
            "hardware": {"gpus": [gpu.uuid]},
            "parallel": {"kind": "single"},
        }
    )
    with Trainer(make_model(), config, MaskedRows(8), loss=MaskedRegression([])) as trainer:
        device = trainer._run.groups.device
        assert {parameter.device for parameter in trainer.model.parameters()} == {device}
    assert device == torch.device("cuda", torch.cuda.device_count() - 1)
    torch.cuda.set_device(0)  # for the tests after this one
