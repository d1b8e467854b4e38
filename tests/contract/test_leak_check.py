"""The leak check fails a test for each kind of leak, names it, and cleans up for the next one."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PLANTED = """
import gc, os, signal, subprocess, threading, time
import pytest

release = threading.Event()

def test_sets_variable():
    os.environ["PLANTED"] = "1"

def test_removes_variable():
    del os.environ["PLANTED_BEFORE"]

def test_changes_directory(tmp_path):
    os.chdir(tmp_path)

def test_leaves_thread():
    threading.Thread(target=release.wait, name="planted thread").start()

def test_leaves_daemon():
    threading.Thread(target=release.wait, name="planted daemon", daemon=True).start()

def test_leaves_child():
    test_leaves_child.kept = subprocess.Popen(["sleep", "60"])

def test_leaves_zombie():
    test_leaves_zombie.kept = subprocess.Popen(["true"])

def test_sets_handler():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

def test_switches_gc_off():
    gc.disable()

def test_leaves_group():
    import torch.distributed as dist
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

def test_leaves_dtype():
    import torch
    torch.set_default_dtype(torch.float64)

def test_innocent_is_undone(monkeypatch, tmp_path):
    monkeypatch.setenv("PLANTED", "1")
    monkeypatch.chdir(tmp_path)

def test_innocent_ends_soon():
    threading.Thread(target=time.sleep, args=(0.2,)).start()
    subprocess.run(["true"], check=True)

def test_innocent_finds_all_clean():
    import torch
    import torch.distributed as dist
    release.set()
    assert "PLANTED" not in os.environ and os.environ["PLANTED_BEFORE"] == "1"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL and gc.isenabled()
    assert not dist.is_initialized() and torch.get_default_dtype() == torch.float32
"""

EXPECTED = {
    "test_sets_variable": "environment variable PLANTED: None became '1'",
    "test_removes_variable": "environment variable PLANTED_BEFORE: '1' became None",
    "test_changes_directory": "working directory: ",
    "test_leaves_thread": "thread 'planted thread' (not daemon) still runs",
    "test_leaves_daemon": "thread 'planted daemon' (daemon) still runs",
    "test_leaves_child": "sleep 60",
    "test_leaves_zombie": "(ended, never waited for)",
    "test_sets_handler": "handler of SIGTERM: ",
    "test_switches_gc_off": "global setting gc.isenabled: True became False",
    "test_leaves_group": "process group: torch.distributed is still initialised",
    "test_leaves_dtype": "global setting torch.get_default_dtype: torch.float32 became torch.float64",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Name of each planted test -> what pytest said of it, empty where it passed."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "conftest.py").write_text("from tests.conftest import nothing_left_behind\n")
    (folder / "test_planted.py").write_text(PLANTED)
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={folder}"]
    result = subprocess.run(
        [*command, f"--junitxml={report}", str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PLANTED_BEFORE": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 1, result.stdout + result.stderr
    return {
        str(case.get("name")): "".join(str(problem.get("message")) + (problem.text or "") for problem in case)
        for case in ET.parse(report).iter("testcase")
    }


@pytest.mark.parametrize("name", EXPECTED)
def test_a_leak_fails_and_is_named(outcomes: dict[str, str], name: str) -> None:
    assert "the test left something behind" in outcomes[name]
    assert EXPECTED[name] in outcomes[name]
    others = [text for other, text in EXPECTED.items() if other != name and text in outcomes[name]]
    assert others == []


def test_innocent_tests_pass(outcomes: dict[str, str]) -> None:
    innocent = {name: text for name, text in outcomes.items() if "innocent" in name}
    assert innocent == dict.fromkeys(
        ("test_innocent_is_undone", "test_innocent_ends_soon", "test_innocent_finds_all_clean"), ""
    )
    assert len(outcomes) == len(innocent) + len(EXPECTED)
