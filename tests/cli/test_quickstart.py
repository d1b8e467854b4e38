"""`drumline quickstart` as people run it; `--benchmark` runs in tests/seeds, with a document's block."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from drumline.cli import bench_run
from drumline.cli.app import app
from drumline.config.load import load_config
from drumline.errors import LaunchError
from drumline.rundir import read_lines
from drumline.track.soundness import CHECKS
from tests.cli.real_command import COMMAND, Command


@pytest.mark.system  # it takes half a minute
def test_two_processes_of_the_cpu_are_in_order(tmp_path: Path) -> None:
    ended = Command(tmp_path, "quickstart", "--check").wait()
    assert ended.status == 0, ended.out + ended.err
    lines = [line.split(maxsplit=2) for line in ended.out.splitlines()]
    assert [(state, name) for state, name, _ in lines] == [("ok", name) for name in CHECKS]
    devices, reduced, parameters, speed = (message for _, _, message in lines)
    assert "2 processes on the CPU" in devices and "over gloo: every sum is right" in reduced
    assert parameters == "equal on 2 ranks after an update"
    assert "times as fast as one process alone" in speed


@pytest.mark.system
def test_epochs_train_and_leave_a_run(tmp_path: Path) -> None:
    ended = Command(tmp_path, "quickstart", "--epochs", "1").wait()
    assert ended.status == 0, ended.err
    [run] = (tmp_path / "runs").iterdir()
    losses = [record["loss"] for record in read_lines(run / "metrics.jsonl") if record["kind"] == "eval"]
    assert losses[-1] < losses[0]
    assert f"evaluation loss {losses[0]:.4f} before, {losses[-1]:.4f} after 1 epoch(s)" in ended.out
    assert f"the run lies in {run.relative_to(tmp_path)};" in ended.out


def test_lines_of_standard_input_answer_and_its_end_takes_the_rest(tmp_path: Path) -> None:
    for lines, name in (("classify_images\n", "my_recipe.yaml"), ("", "my_recipe_2.yaml")):
        asked = [str(COMMAND), "quickstart", "--interactive"]
        ended = subprocess.run(asked, cwd=tmp_path, input=lines, capture_output=True, text=True, timeout=600)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.endswith(f"wrote {name}; train it with:\n  drumline train {name}\n")
    assert load_config(tmp_path / "my_recipe.yaml") == load_config("classify_images")


def in_process(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> Any:
    monkeypatch.chdir(folder)
    return CliRunner().invoke(app, ["quickstart", *options])


def test_without_an_option_it_says_what_to_do_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = in_process(tmp_path, monkeypatch)
    assert ended.exit_code == 0
    assert all(f"drumline quickstart --{name}" in ended.output for name in ("check", "epochs 10", "benchmark"))
    assert "world_size" in ended.output and list(tmp_path.iterdir()) == []


def test_two_options_at_once_are_a_bad_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = in_process(tmp_path, monkeypatch, "--check", "--epochs", "2")
    assert ended.exit_code == 2 and "one of them at a time" in ended.output


def other_parameters(run: Any, request: bench_run.Request, whole: Any) -> dict[str, Any]:
    ranks = [
        {"device": f"process {rank}", "parameters": str(rank), "moved": True} for rank in range(request.num_workers)
    ]
    rows = [{"collective": "all_reduce", "bytes": request.what["bytes"], "bus_bytes_per_s": 1e9}]
    comm = {"world_size": request.num_workers, "backend": "gloo", "wrong_sums": 0, "rows": rows}
    return {"ranks": ranks, "comm": comm, "unit": "tokens", "units_per_s": 1.0}


def no_start(*_: Any) -> Any:
    raise LaunchError("rank 1 failed: no route to host", "see its log")


@pytest.mark.parametrize(
    ("workers", "failed"), [(other_parameters, "FAIL  parameters"), (no_start, "FAIL  start       rank 1 failed")]
)
def test_a_fault_of_the_ranks_ends_with_1(
    workers: Any, failed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_run, "run_workers", workers)
    ended = in_process(tmp_path, monkeypatch, "--check")
    assert ended.exit_code == 1 and ended.stdout.count("FAIL") == 1
    assert failed in ended.stdout
