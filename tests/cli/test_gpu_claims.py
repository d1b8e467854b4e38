"""Launches that choose their GPUs in the same moment, on a simulated machine: real processes, real locks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

RACER = """
import json, os, sys, time
from pathlib import Path
from drumline.config.schema import HardwareConfig
from drumline.errors import HardwareError
from drumline.hardware.claims import Claims
from drumline.hardware.inventory import detect
from drumline.launcher.gpus import take_gpus
from tests.simulated_nvml import SimulatedGpu, SimulatedNvml

folder, number, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
nvml = SimulatedNvml([SimulatedGpu(f"GPU-{i}0000000") for i in range(8)])
claims, hardware = Claims(f"runs/{number}", folder / "claims"), detect({}, nvml)
(folder / f"ready_{number}").touch()
while not (folder / "go").exists():
    time.sleep(0.001)
try:
    print(json.dumps([gpu.uuid for gpu in take_gpus(HardwareConfig(count=count), hardware, claims, nvml=nvml).gpus]))
except HardwareError as error:
    print(json.dumps(error.problem))
sys.stdout.flush()
sys.stdin.read()  # holds its claims until the test lets it go
"""
ROOT = Path(__file__).parents[2]


def start(folder: Path, number: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RACER, str(folder), str(number), str(count)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environ)


def test_launches_of_the_same_moment_never_take_the_same_gpu(tmp_path: Path) -> None:
    with ExitStack() as stack:
        racers = [stack.enter_context(start(tmp_path, number, 3)) for number in range(3)]
        for number, racer in enumerate(racers):
            while not (tmp_path / f"ready_{number}").exists():
                assert racer.poll() is None
        (tmp_path / "go").touch()
        answers = [json.loads(racer.stdout.readline()) for racer in racers if racer.stdout is not None]
        taken = [uuid for answer in answers if isinstance(answer, list) for uuid in answer]
        refused = [answer for answer in answers if isinstance(answer, str)]
        # All or nothing: 8 GPUs are enough for two of them, and none sits on some that it cannot use.
        assert len(taken) == len(set(taken)) == 6 and len(refused) == 1
        for problem in refused:
            assert problem.startswith("3 GPUs are asked for, and 2 of 8 can be used")
            assert problem.count("claimed by process") == 6
        # The kernel frees what a killed launch has claimed.
        winner = next(racer for racer, answer in zip(racers, answers, strict=True) if isinstance(answer, list))
        winner.send_signal(signal.SIGKILL)
        winner.wait()
        last = stack.enter_context(start(tmp_path, 9, 5))
        assert last.stdout is not None and len(json.loads(last.stdout.readline())) == 5
        for racer in (*racers, last):
            racer.kill()
