"""`python -m drumline.bench.compare`, what `drumline bench compare` starts, on contestants that do next to nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from drumline.rundir import read_json

GOOD = """
import json, os, sys
task, devices, rate, *_ = sys.argv[1:]
open("trace.txt", "a").write(rate + "\\n")
print("a line of a library")
print(json.dumps({"name": "x", "units_per_s": float(rate) * int(devices), "step_s": [0.5], "peak_memory_bytes": 1,
                  "losses": [2.0, 1.0], "versions": {"threads": os.environ["OMP_NUM_THREADS"]}}))
"""
BAD = "import sys; sys.exit('no such thing')"
CRASHING = GOOD + "sys.stdout.flush(); os.abort()"
ENDLESS = "import subprocess, time; subprocess.Popen(['sleep', '60']); open('started', 'w').close(); time.sleep(60)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "tiny.json").write_text('{"name": "tiny", "device": "cpu", "num_devices": 2}')
    for name, text in (("good.py", GOOD), ("bad.py", BAD), ("crashing.py", CRASHING), ("endless.py", ENDLESS)):
        (tmp_path / name).write_text(text)
    one = {"processes": "one"}
    listed = [
        {"name": "base", "script": "good.py", "arguments": ["100"], **one},
        {"name": "other", "script": "good.py", "arguments": ["150"], **one},
        {"name": "bad", "script": "bad.py", **one},
        {"name": "gone", "script": "good.py", "packages": ["no_such_package"], **one},
        {"name": "crashing", "script": "crashing.py", "arguments": ["300"], **one},
        {"name": "endless", "script": "endless.py", **one},
    ]
    (tmp_path / "contestants.json").write_text(json.dumps(listed))
    return tmp_path


def command(folder: Path, **options: Any) -> list[str]:
    request = folder / "request.json"
    request.write_text(json.dumps({"peers_dir": str(folder), "out": str(folder / "out"), "rounds": 2, **options}))
    return [sys.executable, "-m", "drumline.bench.compare", str(request)]


def compared(folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, **options), capture_output=True, text=True, timeout=60)


def test_contestants_take_turns_and_each_ends_as_it_ends(folder: Path) -> None:
    ended = compared(folder, peers=["base", "other", "bad", "gone"])
    assert ended.returncode == 0, ended.stderr
    rows = {row["name"]: row for row in read_json(folder / "out/result.json")["contestants"]}
    assert (rows["base"]["units_per_s"], rows["other"]["ratio"]) == (200.0, 1.5)
    assert rows["bad"]["status"] == "failed" and "no such thing" in rows["bad"]["why"]
    assert rows["gone"]["status"] == "not installed"
    assert (folder / "trace.txt").read_text().split() == ["100", "150", "100", "150"]
    assert "round 2: other: 300 units/s" in ended.stderr
    page = (folder / "out/index.html").read_text()
    assert "no such thing" in page and "<svg" in page
    assert (folder / "out/compare.png").stat().st_size > 10_000


def test_what_one_has_measured_counts_though_it_crashes_afterwards_and_the_crash_is_told(folder: Path) -> None:
    ended = compared(folder, peers=["base", "crashing"], rounds=1)
    assert ended.returncode == 0 and "crashing: exit status -6 after its result" in ended.stderr, ended.stderr
    row = read_json(folder / "out/result.json")["contestants"][1]
    assert (row["status"], row["ratio"], row["failed_runs"]) == ("ran", 3.0, 0)
    assert "exit status -6 after its result" in row["why"]


def test_a_second_call_makes_only_what_is_missing(folder: Path) -> None:
    assert compared(folder, peers=["base"], rounds=1).returncode == 0
    second = compared(folder, peers=["base", "other"])
    assert (second.returncode, second.stderr.count("kept from an earlier call")) == (0, 1)
    assert (folder / "trace.txt").read_text().split() == ["100", "150", "100", "150"]
    assert read_json(folder / "out/result.json")["contestants"][0]["runs"] == [200.0, 200.0]


def test_without_any_figure_it_fails(folder: Path) -> None:
    ended = compared(folder, peers=["bad"], rounds=1)
    assert (ended.returncode, "no contestant came to a figure" in ended.stderr) == (1, True)


@pytest.mark.parametrize("options", [{"task": "tinny"}, {"peers": ["nobody"]}, {"rounds": 0}, {"typo": 1}])
def test_what_cannot_be_meant_is_a_bad_request(folder: Path, options: dict[str, Any]) -> None:
    ended = compared(folder, **options)
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False), ended.stderr
    assert ended.stderr.startswith("error: ")


def test_one_that_takes_too_long_is_ended_with_all_its_processes(folder: Path) -> None:
    ended = compared(folder, peers=["endless"], rounds=1, limit_s=1.0)
    assert ended.returncode == 1
    assert "not done within 1 s" in ended.stderr
    assert not processes_in(folder)


def test_interrupting_it_ends_the_contestant(folder: Path) -> None:
    child = subprocess.Popen(command(folder, peers=["endless"]), stderr=subprocess.PIPE)
    with child:
        limit = time.monotonic() + 30
        while not (folder / "started").exists():
            assert child.poll() is None and time.monotonic() < limit
            time.sleep(0.02)
        os.kill(child.pid, signal.SIGINT)
        _, errors = child.communicate(timeout=30)
    assert child.returncode == 3, errors
    assert not processes_in(folder)


def processes_in(folder: Path) -> list[str]:
    """Command lines of the processes that run in a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):  # gone meanwhile, or another user's
            continue
    return found
