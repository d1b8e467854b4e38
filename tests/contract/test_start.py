"""The command, the service and the monitor start without torch, and fast."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "drumline"
COMMAND = Path(sys.executable).with_name("drumline")

TORCH_FREE = (
    "errors",
    "rundir",
    "manifest",
    "config",
    "hardware",
    "plan",
    "launcher",
    "track",
    "monitor",
    "jobs",
    "service",
    "cli",
)
START_LIMIT_S = 0.3

IMPORT_ONE_BY_ONE = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    if "torch" in sys.modules:
        sys.exit(f"{name} imports torch")
"""


def torch_free_modules() -> list[str]:
    """`drumline` first, then every module of the rooms that promise it; `__main__` would run on import."""
    names = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] in TORCH_FREE and parts[-1] != "__main__":
            names.append(".".join(("drumline", *parts)).removesuffix(".__init__"))
    return ["drumline", *names]


def import_all(names: list[str]) -> str:
    """What a fresh Python says of importing these one after the other; empty if none of them loads torch."""
    command = [sys.executable, "-c", IMPORT_ONE_BY_ONE, *names]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    return result.stderr.strip() if result.returncode else ""


def test_torch_free_rooms_load_no_torch() -> None:
    names = torch_free_modules()
    assert {"drumline.cli.app", "drumline.rundir", "drumline.track.report"} <= set(names)
    assert import_all(names) == ""


def test_the_check_names_the_module_that_does() -> None:
    assert import_all(["drumline.errors", "torch.version", "drumline.rundir"]) == "torch.version imports torch"


def test_help_starts_in_time() -> None:
    """In time of a processor: what the clock says besides is other work of the machine."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = subprocess.run([COMMAND, "--help"], capture_output=True, text=True, timeout=30)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert result.returncode == 0 and "Usage: drumline" in result.stdout, result.stderr
    assert min(times) < START_LIMIT_S, [round(seconds, 3) for seconds in times]


@pytest.mark.parametrize("module", ["drumline", "drumline.cli.app"])
def test_a_fresh_python_imports_it_without_torch(module: str) -> None:
    assert import_all([module]) == ""
