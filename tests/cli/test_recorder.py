"""The process that records a run's GPUs: it lives and ends with its run, and watches on while that hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from drumline.config.monitor import MonitorConfig
from drumline.engine import recorder
from drumline.engine.recorder import Recorder
from drumline.launcher.recording import RecordingJob
from drumline.rundir import RESTART_REQUEST, Lock, RunDir, read_json, read_lines
from tests.unit.engine.training import trainer_of

ROOT = Path(__file__).parents[2]
SIMULATED = "tests.cli.simulated_recorder"
LIMIT_S = 10.0


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run directory whose recorder will find two simulated GPUs."""
    monkeypatch.setattr(recorder, "MODULE", SIMULATED)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return RunDir.create(tmp_path / "moby")


def job_of(run: RunDir, parent: int | None = None, **more: Any) -> RecordingJob:
    monitor = MonitorConfig.model_validate({"every_s": 0.02, "record_every_s": 0.1}).model_dump(mode="json")
    return RecordingJob(
        run_dir=run.path,
        gpus=("GPU-0", "GPU-1"),
        node="node0",
        machine=0,
        parent=os.getpid() if parent is None else parent,
        step=3,
        elapsed_s=0.0,
        written=time.time(),
        monitor=monitor,
        **more,
    )


def reaches(true: Callable[[], object], what: Callable[[], object] = lambda: "") -> None:
    limit = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < limit, what()
        time.sleep(0.01)


def log_of(run: RunDir) -> str:
    return (run.logs / "monitor_node0.log").read_text()


def lines(run: RunDir) -> list[dict[str, Any]]:
    return list(read_lines(run.metrics))


def events(run: RunDir, name: str) -> list[dict[str, Any]]:
    return [record for record in read_lines(run.events) if record["event"] == name]


def test_it_records_and_ends_in_good_order(run: RunDir) -> None:
    started = Recorder(job_of(run))
    reaches(lambda: len(lines(run)) >= 2, lambda: log_of(run))
    with started.phase("evaluation"):
        reaches(lambda: lines(run)[-1]["phase"] == "evaluation", lambda: log_of(run))
    reaches(lambda: lines(run)[-1]["phase"] == "training", lambda: log_of(run))
    began = time.monotonic()
    started.close()
    assert time.monotonic() - began < 2
    assert {line["kind"] for line in lines(run)} == {"gpu"}
    assert all(line["gpus"].keys() == {"GPU-0", "GPU-1"} and line["step"] == 3 for line in lines(run))
    elapsed = [line["elapsed_s"] for line in lines(run)]
    assert elapsed == sorted(elapsed)
    assert elapsed[0] > 0.1  # from the start of the run, not of the recorder
    assert not events(run, "alert")
    assert "Traceback" not in log_of(run)


def test_signals_that_stop_a_run_do_not_stop_its_recorder(run: RunDir) -> None:
    started = Recorder(job_of(run))
    reaches(lambda: lines(run), lambda: log_of(run))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        os.kill(started.pid, number)
    before = len(lines(run))
    reaches(lambda: len(lines(run)) > before + 2, lambda: log_of(run))
    started.close()


def test_an_xid_asks_for_a_restart_at_once(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "xid")
    started = Recorder(job_of(run, sick_gpu="at_once"))
    reaches(lambda: (run.requests / RESTART_REQUEST).exists(), lambda: log_of(run))
    started.close()
    [xid] = events(run, "xid")
    assert (xid["gpu"], xid["code"]) == ("GPU-0", 79)
    assert [event["gpu"] for event in events(run, "gpu_sick")] == ["GPU-0"]
    assert ("xid_failed", "firing") in [(event["rule"], event["state"]) for event in events(run, "alert")]
    assert "GPU-0 has turned sick: XID 79" in read_json(run.requests / RESTART_REQUEST)["reason"]


def test_a_failing_rank_does_not_wait_for_its_last_words(run: RunDir) -> None:
    started = Recorder(job_of(run))
    reaches(lambda: lines(run), lambda: log_of(run))
    os.kill(started.pid, signal.SIGSTOP)
    began = time.monotonic()
    started.end()
    started.end()
    with started.phase("evaluation"):  # which nobody hears any more
        pass
    assert time.monotonic() - began < 0.5
    os.kill(started.pid, signal.SIGCONT)
    reaches(lambda: psutil.Process(started.pid).status() == psutil.STATUS_ZOMBIE, lambda: log_of(run))
    started.close()


def test_the_run_does_not_wait_for_a_recorder_that_stands_still(run: RunDir) -> None:
    started = Recorder(job_of(run))
    reaches(lambda: lines(run), lambda: log_of(run))
    os.kill(started.pid, signal.SIGSTOP)
    began = time.monotonic()
    for _ in range(5000):  # more than a pipe holds
        with started.phase("evaluation"):
            pass
    assert time.monotonic() - began < 2
    os.kill(started.pid, signal.SIGCONT)
    started.close()
    assert not psutil.pid_exists(started.pid)


def test_a_driver_that_hangs_does_not_keep_it(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "hang")
    started = Recorder(job_of(run))
    reaches(lambda: lines(run), lambda: log_of(run))
    began = time.monotonic()
    started.close()
    assert time.monotonic() - began < LIMIT_S
    assert not psutil.pid_exists(started.pid)


def test_a_failed_worker_that_its_launcher_starts_again_is_no_failed_run(run: RunDir) -> None:
    launch = Lock(run, "launch")
    started = Recorder(job_of(run))
    reaches(lambda: lines(run), lambda: log_of(run))
    run.exit.write_text('{"exit_status": 1, "reason": "failed"}')
    started.end()
    time.sleep(0.2)
    run.exit.unlink()
    started.close()
    launch.release()
    assert not events(run, "alert")


PARENT = """
import json, os, signal, sys, time
from pathlib import Path
from drumline.engine import recorder
from drumline.launcher.recording import RecordingJob
from drumline.rundir import Lock, RunDir
recorder.MODULE = {module!r}
job = RecordingJob.from_line(json.dumps({{**json.loads(sys.argv[1]), "parent": os.getpid()}}).encode())
lock = Lock(RunDir(job.run_dir), "run")
started = recorder.Recorder(job)
if os.fork() == 0:
    os.setpgid(0, 0)
    time.sleep(60)  # a loader process: it holds the pipe open
    os._exit(0)
print(started.pid, flush=True)
time.sleep(60)
"""


def test_it_ends_with_a_parent_that_was_killed_and_tells_of_it(run: RunDir) -> None:
    script = textwrap.dedent(PARENT.format(module=SIMULATED))
    command = [sys.executable, "-c", script, job_of(run).to_line().decode()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        [loader] = [child for child in psutil.Process(parent.pid).children() if child.pid != pid]
        reaches(lambda: lines(run), lambda: log_of(run))
        watcher = psutil.Process(pid)
        # A hang of the run is no end of it: stopped, it is watched on.
        parent.send_signal(signal.SIGSTOP)
        before = len(lines(run))
        reaches(lambda: len(lines(run)) > before + 1, lambda: log_of(run))
        # As the launcher kills a worker that does not end in time: with its group.
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
        watcher.wait(LIMIT_S)
        loader.kill()
    assert [(event["rule"], event["state"]) for event in events(run, "alert")] == [("run_failed", "firing")]


def test_a_run_on_the_cpu_has_one_only_where_it_asks(tmp_path: Path) -> None:
    others = set(psutil.Process().children())  # those of the pool of ranks, where other tests ran before
    with trainer_of(tmp_path / "auto") as trainer:
        trainer.fit()
        assert set(psutil.Process().children()) == others
    assert not list((tmp_path / "auto/logs").glob("monitor_*"))
    with trainer_of(tmp_path / "asked", monitor={"record": True}) as trainer:
        trainer.fit()
        [child] = set(psutil.Process().children()) - others
        assert child.cmdline()[-2:] == ["drumline.monitor.record", str(tmp_path / "asked")]
    assert not child.is_running()
    records = list(read_lines(tmp_path / "asked/metrics.jsonl"))
    assert {record["kind"] for record in records} == {"train"}
    [log] = (tmp_path / "asked/logs").glob("monitor_*")
    assert "recording no GPU" in log.read_text()


def test_a_recorder_that_fails_is_told_of_and_the_run_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "MODULE", "drumline.monitor.no_such_module")
    with trainer_of(tmp_path / "run", monitor={"record": True}) as trainer:
        assert trainer.fit().steps == 3
    assert any("exit status 1" in record.message for record in caplog.records)
    [log] = (tmp_path / "run/logs").glob("monitor_*")
    assert "no_such_module" in log.read_text()
