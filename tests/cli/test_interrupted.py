"""Runs that are stopped from outside, as schedulers and people do it: saved, status 3, gone on with where they were.

Each launch here starts real ranks and takes some six seconds on two idle cores, nearly all of it to import torch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from drumline.manifest import check
from drumline.rundir import RunDir, read_json, read_lines
from tests.cli.real_command import COMMAND, LIMIT_S, Command, end_of, launch_of, processes_of, worker_of, write_recipe

pytestmark = pytest.mark.system

FOREVER = ("--set", "train.max_steps=1000000", "--set", "evaluate.every=end", "--set", "checkpoint.every=null")
SLOW_WRITER = """
import os, sys, time
if "drumline.launcher.child" in sys.orig_argv:
    fsync = os.fsync
    def slow(descriptor):
        time.sleep(float(os.environ.get("SLOW_S", "0.2")))
        fsync(descriptor)
    os.fsync = slow
"""


def saved_step(run: RunDir, message: str) -> int:
    """The step at which a run was interrupted, after looking at what it left."""
    end = end_of(run)
    assert (end["exit_status"], end["reason"], end["message"]) == (3, "interrupted", message)
    assert check(run.checkpoint_of(end["steps"])) == []
    *_, event = read_lines(run.events)
    assert event["event"] == "interrupted"
    return int(end["steps"])


def steps_logged(run: RunDir) -> list[int]:
    return [record["step"] for record in read_lines(run.metrics) if record["kind"] == "train"]


def to_launcher(number: signal.Signals) -> Callable[[Command, RunDir], None]:
    return lambda command, run: command.send(number)


def to_rank_1(command: Command, run: RunDir) -> None:
    worker_of(run, 1).send_signal(signal.SIGTERM)


def by_request(command: Command, run: RunDir) -> None:
    (run.path / "requests/stop").touch()


WAYS = {
    "interrupted by SIGTERM": to_launcher(signal.SIGTERM),
    "interrupted by SIGUSR1": to_launcher(signal.SIGUSR1),
    "interrupted by SIGUSR2": to_launcher(signal.SIGUSR2),
    "asked to stop by a request file": by_request,
}


def test_a_run_survives_every_way_to_stop_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run, stopped in five ways while its disk is slow; each time it goes on at the step that was saved."""
    folder, run = write_recipe(tmp_path), RunDir(tmp_path / "runs/tiny")
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow/sitecustomize.py").write_text(SLOW_WRITER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "slow"), prepend=os.pathsep)
    step = 0
    for message, stop in [*WAYS.items(), ("interrupted by SIGTERM", to_rank_1)]:
        before = step
        with Command(folder, "train", "tiny.yaml", *FOREVER) as command:
            command.reaches(lambda: max(steps_logged(run), default=0) > before)  # noqa: B023 (called at once)
            stop(command, run)
            ended = command.wait()
        step = saved_step(run, message)
        assert (ended.status, processes_of(run)) == (3, [])
        assert ended.err.splitlines()[-1] == f"{message}; the run is saved, and the same command goes on with it"
        assert step > before
        resumed = [event["step"] for event in read_lines(run.events) if event["event"] == "resume"]
        assert resumed[-1:] == ([before] if before else [])
    last = Command(folder, "train", "tiny.yaml", *FOREVER, "--set", f"train.max_steps={step + 3}").wait()
    assert last.status == 0, last.err
    assert (end_of(run)["reason"], end_of(run)["steps"]) == ("done", step + 3)
    logged = steps_logged(run)
    assert logged == sorted(set(logged))  # nothing twice, nothing lost
    assert set(range(2, step + 3, 2)) <= set(logged)


STUCK = """
import pathlib, time
import torch
from drumline import RunConfig, Trainer


def loss(model, batch):
    pathlib.Path("training").touch()
    while pathlib.Path("stuck").exists():
        time.sleep(0.05)
    return model(batch).square().mean()


config = RunConfig(name="tiny", train={"global_batch": 8, "max_steps": 1000000}, loader={"num_workers": 1})
Trainer(torch.nn.Linear(4, 1), config, [torch.ones(4)] * 64, loss=loss).fit()
print("it goes on as if the run were done")
"""
TWO = ("--set", "hardware.num_processes=2", "--set", "hardware.device=cpu")


def test_the_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(STUCK)
    (tmp_path / "stuck").touch()
    with Command(tmp_path, "launch", *TWO, "script.py") as command:
        command.reaches((tmp_path / "training").exists)
        command.send(signal.SIGINT)
        time.sleep(0.2)
        command.send(signal.SIGINT)  # the same one, from the terminal's group for instance
        for _ in range(5):  # longer than that
            time.sleep(0.2)
        command.reaches(lambda: True)
        again = time.time()
        command.send(signal.SIGINT)
        ended = command.wait()
    assert ended.status == 3
    assert ended.ended - again < LIMIT_S
    assert processes_of(launch_of(tmp_path)) == []
    assert ended.err.splitlines()[-1] == "interrupted by SIGINT; all workers have ended"


BROKEN_END = """
import pathlib
import torch
from drumline import Callback, RunConfig, Trainer


class Breaks(Callback):
    def on_update(self, trainer, info):
        pathlib.Path("training").touch()

    def on_end(self, trainer, result):
        if trainer.world.rank == 1 and result is not None:
            raise OSError("no room for my own file")


def loss(model, batch):
    return model(batch).square().mean()


config = RunConfig(name="tiny", train={"global_batch": 8, "max_steps": 1000000}, loader={"num_workers": 0})
Trainer(torch.nn.Linear(4, 1), config, [torch.ones(4)] * 64, loss=loss, callbacks=[Breaks()]).fit()
"""


def test_what_fails_on_the_way_out_is_told(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(BROKEN_END)
    with Command(tmp_path, "launch", *TWO, "script.py") as command:
        command.reaches((tmp_path / "training").exists)
        command.send(signal.SIGTERM)
        ended = command.wait()
    assert ended.status == 1
    assert "error: rank 1 failed: OSError: no room for my own file (script.py:" in ended.last_lines[0]
    assert end_of(RunDir(tmp_path / "runs/tiny"))["reason"] == "failed"
    assert processes_of(launch_of(tmp_path)) == []


def test_a_script_by_itself_ends_with_3_also_when_its_whole_group_is_told(tmp_path: Path) -> None:
    """As timeout(1) and systemd do it: the loader processes get the signal too, and the script gets it twice."""
    (tmp_path / "script.py").write_text(STUCK)
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    wait_for(tmp_path / "training", process)
    process.send_signal(signal.SIGTERM)
    os.killpg(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert "as if the run were done" not in out
    assert saved_step(RunDir(tmp_path / "runs/tiny"), "interrupted by SIGTERM") >= 0


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_torchrun(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(STUCK)
    command = [str(COMMAND.with_name("torchrun")), "--standalone", "--nproc-per-node", "2", "script.py"]
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(tmp_path)}  # torchrun leaves its folder there
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=pipe, stderr=pipe, text=True)
    wait_for(tmp_path / "training", process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err  # torchrun's own, for any signal
    assert "as if the run were done" not in out
    assert saved_step(RunDir(tmp_path / "runs/tiny"), "interrupted by SIGTERM") >= 0


FUNCTION = """
import json, os, signal, threading
import torch
import drumline
from drumline.errors import Interrupted
from drumline import RunConfig, Trainer


def loss(model, batch):
    return model(batch).square().mean()


def train():
    config = RunConfig(name="tiny", train={"global_batch": 8, "max_steps": 1000000}, loader={"num_workers": 0})
    stop = lambda trainer, info: info.step == 3 and os.environ["RANK"] == "1" and os.kill(os.getpid(), signal.SIGUSR1)
    Trainer(torch.nn.Linear(4, 1), config, [torch.ones(4)] * 64, loss=loss, callbacks=[stop]).fit()


if __name__ == "__main__":
    try:
        drumline.launch(train, num_processes=2)
    except Interrupted as stop:
        print(json.dumps([stop.reason, stop.code]))
        raise
"""


def test_a_function_that_is_launched(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FUNCTION)
    ended = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.splitlines()[-1] == '["interrupted by SIGUSR1", 3]'
    assert saved_step(RunDir(tmp_path / "runs/tiny"), "interrupted by SIGUSR1") == 3
    assert read_json(launch_of(tmp_path).logs / "rank_1.stopped.json")["reason"] == "interrupted by SIGUSR1"
