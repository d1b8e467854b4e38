"""`drumline launch` and `drumline.launch`: real agents and workers. Six launches, of some 3 s each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer
from typer.testing import CliRunner

from drumline.cli import launch
from drumline.cli.app import ExitStatusGroup
from drumline.hardware.host import cpu_cores
from drumline.launcher.agent import Stops, Watch
from drumline.launcher.processes import end_marked
from drumline.launcher.spec import MARK
from drumline.rundir import RunDir, read_json

app = typer.Typer(cls=ExitStatusGroup)
app.callback()(lambda: None)
launch.register(app)

COMMAND = """
import typer
from drumline.cli import launch
from drumline.cli.app import ExitStatusGroup
app = typer.Typer(cls=ExitStatusGroup, pretty_exceptions_enable=False)
app.callback()(lambda: None)
launch.register(app)
app()
"""
TWO = ("launch", "--set", "hardware.num_processes=2", "--set", "hardware.device=cpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and as many threads as the launcher gives."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS")
    return tmp_path


def start(script: str, arguments: tuple[str, ...] = (), **environ: str) -> subprocess.Popen[str]:
    Path("scripts").mkdir()
    Path("scripts/train.py").write_text(script)
    command = [sys.executable, "-c", COMMAND, *TWO, "scripts/train.py", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **environ})


def launched() -> RunDir:
    [path] = Path("runs/launch").iterdir()
    return RunDir(path)


def still_running(run: RunDir) -> list[str]:
    """Processes of a launch, by the mark that all of them inherit."""
    launch_id = read_json(run.logs / "launch.json")["launch_id"]
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == launch_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid}: {' '.join(process.cmdline())}")
        except (psutil.Error, OSError):  # gone meanwhile
            continue
    return found


def wait_until(true: Callable[[], object], limit_s: float = 10.0) -> None:
    limit = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < limit, f"not within {limit_s} s"
        time.sleep(0.02)


def test_a_script_runs_on_every_rank_as_python_would_run_it(folder: Path) -> None:
    (folder / "temporary").mkdir()
    script = """
import dataclasses, json, os, sys
from drumline.launcher.world import detect_world
assert "torch" not in sys.modules
print(f"out of {os.environ['RANK']}")
print(f"err of {os.environ['RANK']}", file=sys.stderr)
facts = dict(argv=sys.argv, path=sys.path[0], name=__name__, file=__file__, main=sys.modules["__main__"].__file__)
facts |= dataclasses.asdict(detect_world())
facts |= {name: os.environ[name] for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")}
with open(f"facts_{os.environ['RANK']}.json", "w") as file:
    json.dump(facts, file)
"""
    process = start(script, ("--set", "a=1", "-x"), TMPDIR=str(folder / "temporary"))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "out of 0\n", "err of 0\n")
    run = launched()
    assert run.path.name.startswith("train-2")
    assert run.log_of(1).read_text() == "out of 1\nerr of 1\n"
    facts: list[dict[str, Any]] = [json.loads(Path(f"facts_{rank}.json").read_text()) for rank in range(2)]
    for rank, fact in enumerate(facts):
        assert (fact["rank"], fact["size"], fact["local_rank"], fact["local_size"]) == (rank, 2, rank, 2)
        assert fact["argv"] == ["scripts/train.py", "--set", "a=1", "-x"]
        assert fact["path"] == str(folder / "scripts")
        assert (fact["name"], fact["file"], fact["main"]) == ("__main__", "scripts/train.py", "scripts/train.py")
        assert fact["OMP_NUM_THREADS"] == str(max(1, cpu_cores() // 2))
        assert fact["CUDA_VISIBLE_DEVICES"] == ""
    assert facts[0]["init_method"] == facts[1]["init_method"]
    assert facts[0]["init_method"].startswith("agent://127.0.0.1:")
    assert list((folder / "temporary").iterdir()) == []
    assert still_running(run) == []


def test_an_exception_on_one_rank_ends_all_and_is_last_on_screen(folder: Path) -> None:
    script = """
import os, pathlib, subprocess, time
ready = pathlib.Path("ready")
if os.environ["RANK"] == "0":
    subprocess.Popen(["sleep", "60"], start_new_session=True)  # would outlive its rank
    ready.touch()
    time.sleep(60)
while not ready.exists():
    time.sleep(0.01)
started = time.time()
pathlib.Path("failed_at").write_text(str(started))
raise ValueError("boom")
"""
    process = start(script)
    _, err = process.communicate(timeout=60)
    run = launched()
    assert time.time() - float(Path("failed_at").read_text()) < 10
    assert still_running(run) == []
    assert process.returncode == 1
    lines = err.splitlines()
    assert lines[-2:] == [
        "error: rank 1 failed: ValueError: boom (scripts/train.py:12)",
        f"  fix: see {run.log_of(1)}",
    ]
    [sleeper] = read_json(run.logs / "agent.json")["stragglers"]
    assert lines[:2] == [
        f"ended what had outlived the workers that started it: pid {sleeper}",
        "Traceback (most recent call last):",
    ]
    assert lines[-4] == "ValueError: boom"
    assert "child.py" not in err
    assert run.log_of(1).read_text().endswith("ValueError: boom\n")
    assert not run.error_of(0).exists()


def test_functions_return_their_results_and_a_killed_rank_is_named(folder: Path) -> None:
    (folder / "work.py").write_text("""
import json, os, signal, time
import drumline

def square(number):
    return {"rank": int(os.environ["RANK"]), "square": number * number, "name": __name__}

def die():
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)

if __name__ == "__main__":
    print(json.dumps(drumline.launch(square, (3,), num_processes=2, run_dir="first")))
    try:
        drumline.launch(die, num_processes=2, run_dir="second")
    except drumline.DrumlineError as error:
        print(json.dumps([type(error).__name__, error.code, error.exit_status, error.problem, error.fix]))
""")
    result = subprocess.run([sys.executable, "work.py"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    results, failure = (json.loads(line) for line in result.stdout.splitlines())
    assert results == [{"rank": rank, "square": 9, "name": "__mp_main__"} for rank in range(2)]
    problem = "rank 1 failed: killed by signal 9, SIGKILL (out of memory killer?)"
    assert failure == ["LaunchError", "signal", 1, problem, "see second/logs/rank_1.log"]
    assert still_running(RunDir(Path("first"))) + still_running(RunDir(Path("second"))) == []


SLEEPS = """
import os, pathlib, subprocess, time
subprocess.Popen(["sleep", "60"], start_new_session=True)
try:
    pathlib.Path("ready_" + os.environ["RANK"]).touch()
    time.sleep(60)
finally:
    pathlib.Path("saved_" + os.environ["RANK"]).touch()
"""


def sleeping_launch() -> subprocess.Popen[str]:
    process = start(SLEEPS)
    wait_until(lambda: Path("ready_0").exists() and Path("ready_1").exists(), 60)
    return process


def test_a_killed_launcher_leaves_nobody(folder: Path) -> None:
    process = sleeping_launch()
    run = launched()
    assert len(still_running(run)) == 5  # the agent, two ranks, what each of them started
    process.kill()
    process.communicate(timeout=10)
    wait_until(lambda: not still_running(run))


def test_ctrl_c_reaches_every_rank_once_and_ends_all(folder: Path) -> None:
    process = sleeping_launch()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 3
    leftovers, last = err.splitlines()
    assert leftovers.startswith("ended what had outlived the workers that started it: pid ")
    assert last == "interrupted by SIGINT; all workers have ended"
    assert Path("saved_0").exists() and Path("saved_1").exists()
    run = launched()
    assert still_running(run) == []
    deaths = read_json(run.logs / "agent.json")["deaths"]
    assert [(death["exit_code"], death["ended_by_us"]) for death in deaths] == [(130, True), (130, True)]


def shell(script: str, **environ: str) -> subprocess.Popen[bytes]:
    """A process group without torch, for the parts that need none."""
    process = subprocess.Popen(
        ["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE, env={**os.environ, **environ}
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    polite, stubborn = shell("echo ready; sleep 60"), shell("trap '' TERM; echo ready; while :; do sleep 60; done")
    watch = Watch({0: polite.pid, 1: stubborn.pid})
    started = time.monotonic()
    watch.end(signal.SIGTERM, 0.2)
    assert 0.2 <= time.monotonic() - started < 3
    assert [(death.exit_code, death.ended_by_us) for death in watch.deaths.values()] == [(-15, True), (-9, True)]
    assert watch.over
    for process in (polite, stubborn):
        process.communicate(timeout=5)


def test_a_death_is_seen_once_and_left_to_be_reaped() -> None:
    process = shell("echo ready; exit 7")
    watch = Watch({0: process.pid})
    while not watch.over:
        watch.look()
    assert watch.hinders
    assert (watch.deaths[0].exit_code, watch.deaths[0].ended_by_us) == (7, False)
    assert process.wait() == 7
    watch.end(signal.SIGTERM, 5)  # nobody is left: returns at once and signals no foreign process
    process.communicate()


def seen_over(watch: Watch) -> bool:
    watch.look()
    return watch.over


def test_a_signal_is_passed_on_to_ranks_alone_and_their_end_by_it_hinders_nobody() -> None:
    script = "trap 'exit 0' USR1; sleep 60 & echo ready; wait"
    ranks = [shell(script), shell("echo ready; exec sleep 60")]
    children = [child for rank in ranks for child in psutil.Process(rank.pid).children()]
    watch = Watch({number: rank.pid for number, rank in enumerate(ranks)})
    watch.pass_on(signal.SIGUSR1)
    wait_until(lambda: seen_over(watch))
    # Which of the two is seen first is chance.
    assert {rank: (death.exit_code, death.ended_by_us) for rank, death in watch.deaths.items()} == {
        0: (0, True),
        1: (-signal.SIGUSR1, True),
    }
    assert not watch.hinders
    assert all(child.is_running() for child in children)
    for child in children:
        child.kill()
    for rank in ranks:
        rank.communicate(timeout=5)


def test_ranks_that_take_longer_than_the_grace_are_killed() -> None:
    stubborn = shell("trap '' USR2; echo ready; while :; do sleep 60; done")
    watch, stops = Watch({0: stubborn.pid}), Stops()
    stops.handle(signal.SIGUSR2, None)
    started = time.monotonic()
    while not watch.over:
        stops.pass_on(watch, 0.3)
        time.sleep(0.02)
    assert 0.3 <= time.monotonic() - started < 5
    assert watch.deaths[0].exit_code == -signal.SIGKILL
    stubborn.communicate(timeout=5)


def test_a_failure_after_a_signal_hinders_the_others() -> None:
    rank = shell("trap 'exit 1' TERM; echo ready; while :; do sleep 0.05; done")
    watch = Watch({0: rank.pid})
    watch.pass_on(signal.SIGTERM)
    wait_until(lambda: seen_over(watch))
    assert watch.hinders
    rank.communicate(timeout=5)


def test_marked_processes_are_ended_and_no_others() -> None:
    ours, other = (shell("echo ready; sleep 60", **{MARK: name}) for name in ("ours", "another launch"))
    assert ours.pid in end_marked("ours")
    assert ours.wait(timeout=5) == -signal.SIGKILL
    assert other.poll() is None
    assert other.pid in end_marked("another launch")
    for process in (ours, other):
        process.communicate(timeout=5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.py"], "there is no script absent.py"),
        (["--set", "train.lr=1", "absent.py"], "--set train.lr=1: launch only decides which workers there are"),
        (["--set", "hardware.num_processes=0", "absent.py"], "hardware.num_processes"),
        (["--set", "faults.sick_gpu=at_once", "absent.py"], "only the run itself can save and end"),
        ([], "Missing argument"),
    ],
)
def test_bad_requests(folder: Path, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["launch", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert list(folder.iterdir()) == []
