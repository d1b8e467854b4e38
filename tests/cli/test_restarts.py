"""Workers that are started again, and launches of which nothing is left: real agents and ranks, some 3 s an attempt."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from drumline.rundir import RunDir, read_json, read_lines, write_json
from tests.cli.real_command import Command, launch_of, processes_of, worker_of, write_recipe

TWO = ("--set", "hardware.num_processes=2", "--set", "hardware.device=cpu")
DIES = """
import os, pathlib, signal, subprocess, sys, time
rank, attempt = os.environ["RANK"], len(list(pathlib.Path().glob("attempt_*")))
if rank == "1":
    pathlib.Path(f"attempt_{attempt}").touch()
    if attempt < int(sys.argv[1]):
        subprocess.Popen(["sleep", "60"], start_new_session=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[2:] == ["raise"]:
        raise ValueError("boom")
print("done", rank)
"""
KILLED = "rank 1 failed: killed by signal 9, SIGKILL (out of memory killer?)"


def is_running(pid: int) -> bool:
    """Whether it is more than an entry that nobody has asked for yet."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def launch(folder: Path, restarts: int, *arguments: str) -> Command:
    (folder / "dies.py").write_text(DIES)
    return Command(folder, "launch", *TWO, "--set", f"faults.max_restarts={restarts}", "dies.py", *arguments)


def test_killed_ranks_are_started_again_and_what_they_left_is_told_by_pid(tmp_path: Path) -> None:
    ended = launch(tmp_path, 2, "1").wait()
    assert ended.status == 0 and ended.out.endswith("done 0\n"), ended.err
    run = launch_of(tmp_path)
    [event] = read_lines(run.events)
    assert (event["event"], event["attempt"], event["reason"], event["step"]) == ("restart", 2, KILLED, None)
    left, again = ended.err.splitlines()
    assert left.startswith("ended what had outlived the workers that started it: pid ")
    assert not is_running(int(left.rpartition(" ")[2]))
    assert again == f"starting all workers again (attempt 2): {KILLED}"
    assert processes_of(run) == []


def test_after_the_last_restart_the_failure_says_so(tmp_path: Path) -> None:
    ended = launch(tmp_path, 1, "9").wait()
    assert ended.status == 1
    reason = "the workers have been restarted 1 times (faults.max_restarts)"
    run = launch_of(tmp_path)
    assert ended.last_lines == [
        f"error: {KILLED}; not restarted: {reason}",
        f"  fix: see {run.log_of(1).relative_to(tmp_path)}",
    ]
    assert [event["event"] for event in read_lines(run.events)] == ["restart", "gave_up"]


def test_a_programs_own_error_is_not_tried_again(tmp_path: Path) -> None:
    ended = launch(tmp_path, 5, "0", "raise").wait()
    assert ended.status == 1
    assert ended.last_lines[0].startswith("error: rank 1 failed: ValueError: boom (dies.py:")
    assert not launch_of(tmp_path).events.exists()
    assert len(list(tmp_path.glob("attempt_*"))) == 1


HOLDS = """
import sys, time
from pathlib import Path
from drumline.launcher.processes import held_pipe
from drumline.launcher.spec import LaunchSpec
with held_pipe(LaunchSpec(Path(sys.argv[1]), 1, "script", "x.py")):
    print("held", flush=True)
    time.sleep(60)
"""
WATCHES = """
import subprocess, sys, time
from pathlib import Path
from drumline.launcher import processes
from drumline.launcher.spec import LaunchSpec
processes._AGENT_MARGIN_S = 0.0
processes.end_with_launcher(LaunchSpec(Path(sys.argv[1]), 1, "script", "x.py", failure_grace_s=0.3), agent=0)
subprocess.Popen(["sleep", "60"])
print("watches", flush=True)
time.sleep(60)
"""


def python(code: str, run: RunDir) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", code, str(run.path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline()
    return process


@pytest.mark.parametrize("late", [False, True])
def test_ranks_see_their_launchers_end_by_its_pipe(late: bool, tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    with python(HOLDS, run) as launcher:
        if late:
            launcher.kill()
        with python(WATCHES, run) as worker:
            [sleeper] = psutil.Process(worker.pid).children()
            if not late:
                with pytest.raises(subprocess.TimeoutExpired):
                    worker.wait(0.6)  # longer than the grace: while the launcher lives nothing happens
                launcher.kill()
            killed = time.monotonic()
            assert worker.wait(timeout=10) == -signal.SIGKILL
            assert time.monotonic() - killed < 5
            psutil.wait_procs([sleeper], timeout=5)
            assert not sleeper.is_running() or sleeper.status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_recipe(tmp_path)


LONG = ("--set", "train.max_steps=400", "--set", "evaluate.every=end", "--set", "checkpoint.every=25")


@pytest.mark.system
def test_a_recipe_whose_rank_is_killed_goes_on_from_its_checkpoint(folder: Path) -> None:
    run = RunDir(folder / "runs/tiny")
    with Command(folder, "train", "tiny.yaml", *LONG) as command:
        command.reaches(lambda: len(list(run.checkpoints.glob("step_*"))) > 1)
        worker_of(run, 1).kill()
        ended = command.wait()
    assert ended.status == 0, ended.err
    assert f"starting all workers again (attempt 2): {KILLED}" in ended.err
    events = list(read_lines(run.events))
    [restart] = [event for event in events if event["event"] == "restart"]
    [resume] = [event for event in events if event["event"] == "resume"]
    assert restart["reason"].startswith(KILLED)
    assert 25 <= resume["step"] <= restart["step"] < resume["step"] + 50
    assert [event["event"] for event in events if event["event"] in ("start", "restart", "resume", "end")] == [
        "start", "restart", "start", "resume", "end",
    ]  # fmt: skip
    assert [line["step"] for line in read_lines(run.metrics) if line["kind"] == "train"] == list(range(2, 401, 2))


CRASHES = """
import os, signal
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(256, 8), nn.Linear(8, 256)
        self.passes = 0

    def forward(self, ids):
        self.passes += 1
        if self.passes == 6:
            os.kill(os.getpid(), signal.SIGSEGV)
        return self.out(self.embedding(ids))

def make_model(config):
    return Model()
"""


@pytest.mark.system
def test_the_same_end_three_times_is_a_crash_loop(folder: Path) -> None:
    (folder / "model.py").write_text(CRASHES)
    settings = [
        "model={kind: python, file: model.py}",
        "checkpoint.every=null",
        "track.every=1",
        "train.max_steps=50",
        "hardware.num_processes=1",
        "faults.max_restarts=9",
    ]
    ended = Command(folder, "train", "tiny.yaml", *(part for text in settings for part in ("--set", text))).wait()
    assert ended.status == 1
    said = "not restarted: 3 attempts in a row ended after update 5 with this error"
    assert said in ended.last_lines[0]
    events = list(read_lines(RunDir(folder / "runs/tiny").events))
    assert [event["event"] for event in events].count("restart") == 2
    assert said.partition(": ")[2] == next(event["reason"] for event in events if event["event"] == "gave_up")


@pytest.mark.system
def test_a_run_that_is_asked_to_start_again_goes_on_in_new_processes(tmp_path: Path) -> None:
    folder = write_recipe(tmp_path)
    run = RunDir(folder / "runs/tiny")
    # Long enough for a look at the requests, which is made once a second.
    steps = ("--set", "train.max_steps=400", "--set", "evaluate.every=end", "--set", "checkpoint.every=100")
    with Command(folder, "train", "tiny.yaml", *steps, "--set", "faults.max_restarts=0") as command:
        command.reaches(run.requests.is_dir)
        write_json(run.requests / "restart", {"reason": "GPU GPU-1 has turned sick: XID 94"})
        ended = command.wait()
    assert ended.status == 0, ended.err
    assert read_json(run.exit)["steps"] == 400
    events = list(read_lines(run.events))
    [restart] = [event for event in events if event["event"] == "restart"]
    assert restart["reason"].endswith("failed: GPU GPU-1 has turned sick: XID 94")
    [resume] = [event for event in events if event["event"] == "resume"]
    assert resume["step"] == restart["step"] < 400
    assert [event["event"] for event in events].count("failed") == 0
