"""Independent workers as real processes: replaced, stopped, refused, ended with their launcher; nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from drumline.launcher.independent import Crew, Result, Watch, run_crew
from drumline.rundir import RunDir, read_lines

WORKER = """
import os, signal, subprocess, sys, time
from pathlib import Path
from drumline.errors import DataError
from drumline.launcher.notices import noting

folder, what = Path(sys.argv[1]), sys.argv[2]
number = len(list(folder.glob("life_*")))
(folder / f"life_{os.getpid()}").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
if what == "refuse":
    if number == 0:
        raise DataError("no such column", "name another")
    time.sleep(60)
if what == "die thrice":
    if number < 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 2:
        raise RuntimeError("boom")
if what == "never begin":
    sys.exit(1)
if what == "leave a child":
    subprocess.Popen(["sleep", "60"], start_new_session=True)
if what == "wait":
    with noting(["SIGTERM"]) as notice:
        (folder / f"ready_{os.getpid()}").touch()
        while notice.first is None:
            time.sleep(0.01)
    sys.exit(3)
if what == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / f"ready_{os.getpid()}").touch()
    time.sleep(60)
if what == "freeze" and number == 0:
    (folder / f"record_{os.getpid()}").write_text('{"beat": 1.0}\\n')
    os.kill(os.getpid(), signal.SIGSTOP)
if what == "loop" and number == 0:
    for step in range(600):
        with (folder / f"record_{os.getpid()}").open("a") as record:
            record.write(f'{{"beat": 1.0, "step": {step}}}\\n')
        time.sleep(0.1)
if what == "no room":
    raise OSError(28, "No space left on device")
if what == "one is done" and number > 0:
    time.sleep(60)
print("done", flush=True)
"""
LAUNCHER = """
import sys
from pathlib import Path
from drumline.launcher.independent import Crew, run_crew
run_crew(Crew(Path(sys.argv[1]), "crew_worker", (sys.argv[2], "deaf"), ((), ())))
"""


@pytest.fixture
def crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Crew]:
    (tmp_path / "crew_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def of(what: str, gpus: tuple[tuple[str, ...], ...] = ((),), max_restarts: int = 20) -> Crew:
        run = RunDir.create(tmp_path / "run")
        return Crew(run.path, "crew_worker", (str(tmp_path), what), gpus, max_restarts, stop_grace_s=5.0)

    return of


def lives(folder: Path) -> list[str]:
    return [each.read_text() for each in folder.glob("life_*")]


def ready(folder: Path) -> list[int]:
    return [int(each.name.removeprefix("ready_")) for each in folder.glob("ready_*")]


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_one_that_dies_is_replaced_and_all_of_it_is_told(crew: Callable[..., Crew], tmp_path: Path) -> None:
    told: list[str] = []
    result = run_crew(crew("die thrice", (("GPU-a", "GPU-b"),)), Watch(tell=told.append))
    assert result == Result(0, None, None, 3)
    assert lives(tmp_path) == ["GPU-a,GPU-b"] * 4
    assert [line.partition(";")[0] for line in told] == [
        *["worker 0 on GPU-a, GPU-b died: killed by signal 9, SIGKILL (out of memory killer?)"] * 2,
        f"worker 0 on GPU-a, GPU-b died: RuntimeError: boom ({tmp_path}/crew_worker.py:18)",
    ]
    run = RunDir(tmp_path / "run")
    assert [line["action"] for line in read_lines(run.events)] == ["replace"] * 3
    log = (run.logs / "worker_0.log").read_text()
    assert "RuntimeError: boom" in log and log.endswith("done\n")


def test_a_bad_request_ends_all_at_once(crew: Callable[..., Crew]) -> None:
    began = time.monotonic()
    result = run_crew(crew("refuse", ((), ())), Watch(begun=lambda pid: False))
    assert time.monotonic() - began < 10
    assert result.exit_status == 2 and result.failure is not None
    assert result.failure.message == "no such column\n  fix: name another"
    assert result.restarts == 0


def test_workers_that_never_begin_are_tried_three_times_a_seat(crew: Callable[..., Crew], tmp_path: Path) -> None:
    result = run_crew(crew("never begin", ((), ())), Watch(begun=lambda pid: False))
    assert (result.exit_status, result.restarts, len(lives(tmp_path))) == (1, 4, 6)
    assert result.failure is not None and result.failure.message.startswith("exit with status 1")


def test_restarts_are_counted_over_all_workers(crew: Callable[..., Crew], tmp_path: Path) -> None:
    assert run_crew(crew("never begin", ((), ()), 1)).exit_status == 1
    assert len(lives(tmp_path)) == 3


def test_when_one_says_that_all_is_done_the_others_are_ended(crew: Callable[..., Crew]) -> None:
    began = time.monotonic()
    assert run_crew(crew("one is done", ((), ()))) == Result(0)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(("what", "why"), [("freeze", "it has said nothing for"), ("loop", "it has been at one batch")])
def test_one_that_is_stuck_is_killed_named_and_replaced(
    crew: Callable[..., Crew], tmp_path: Path, what: str, why: str
) -> None:
    told: list[str] = []
    watch = Watch(records=lambda pid: [*tmp_path.glob(f"record_{pid}")], tell=told.append)
    result = run_crew(replace(crew(what), silence_s=1.5, hang_timeout_s=2.5), watch)
    assert result == Result(0, None, None, 1)
    assert len(lives(tmp_path)) == 2
    assert told[0].startswith(f"warning: worker 0 is stuck and is killed: {why}")
    assert told[1].startswith(f"worker 0 died: ended by its launcher: {why}")
    events = list(read_lines(RunDir(tmp_path / "run").events))
    assert [line["event"] for line in events] == ["worker_stuck", "worker_died"]


def test_where_the_disk_is_full_nobody_is_started_again(crew: Callable[..., Crew], tmp_path: Path) -> None:
    told: list[str] = []
    result = run_crew(crew("no room", ((), ())), Watch(tell=told.append))
    assert (result.exit_status, result.restarts, len(lives(tmp_path))) == (1, 0, 2)
    assert result.failure is not None and "No space left" in result.failure.message
    assert "make room" in result.failure.message and "the disk is full" in told[0]


def test_deaths_that_bring_something_new_are_not_counted(crew: Callable[..., Crew], tmp_path: Path) -> None:
    watch = Watch(progress=lambda: len(lives(tmp_path)))
    assert run_crew(crew("die thrice", max_restarts=0), watch) == Result(0, None, None, 3)


def test_what_a_worker_has_started_and_left_is_ended_too(crew: Callable[..., Crew]) -> None:
    result = run_crew(crew("leave a child"))
    assert result.exit_status == 0 and len(result.leftovers) == 1
    assert is_gone(result.leftovers[0])


def signalled(folder: Path, numbers: list[signal.Signals], apart_s: float) -> threading.Thread:
    def send() -> None:
        limit = time.monotonic() + 30
        while len(ready(folder)) < 2 and time.monotonic() < limit:
            time.sleep(0.02)
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(apart_s)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_a_signal_stops_all_in_good_order(crew: Callable[..., Crew], tmp_path: Path) -> None:
    thread = signalled(tmp_path, [signal.SIGINT], 0.0)
    result = run_crew(crew("wait", ((), ())))
    thread.join()
    assert result == Result(3, None, signal.SIGINT)


def test_a_second_signal_kills_those_that_do_not_hear(crew: Callable[..., Crew], tmp_path: Path) -> None:
    thread = signalled(tmp_path, [signal.SIGTERM, signal.SIGTERM], 0.7)
    began = time.monotonic()
    result = run_crew(crew("deaf", ((), ())))
    thread.join()
    assert (result.exit_status, result.interrupted) == (3, signal.SIGTERM)
    assert time.monotonic() - began < 15
    assert all(is_gone(pid) for pid in ready(tmp_path))


def test_workers_end_with_a_launcher_that_is_killed(crew: Callable[..., Crew], tmp_path: Path) -> None:
    run = crew("deaf").run_dir
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, str(run), str(tmp_path)])
    limit = time.monotonic() + 30
    while len(ready(tmp_path)) < 2 and time.monotonic() < limit:
        time.sleep(0.02)
    workers = ready(tmp_path)
    launcher.kill()
    launcher.wait()
    limit = time.monotonic() + 5
    while not all(map(is_gone, workers)) and time.monotonic() < limit:
        time.sleep(0.02)
    assert len(workers) == 2 and all(map(is_gone, workers))
