"""`drumline checkpoints` as a command."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from drumline.cli.checkpoints import register
from drumline.errors import ConfigError
from drumline.manifest import MANIFEST, Entry, Manifest, digest
from drumline.rundir import RunDir, write_json


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    return app


def save(run: RunDir, step: int, metrics: dict[str, float]) -> Path:
    """A checkpoint with one file in it."""
    folder = run.checkpoint_of(step)
    folder.mkdir(parents=True)
    (folder / "state.pt").write_bytes(b"x" * 2**21)
    entry = Entry("state.pt", 0, 2**21, digest(folder / "state.pt"))
    manifest = Manifest(step, (entry,), 2, "ddp", "whole", metrics, time.time() - 3600)
    write_json(folder / MANIFEST, manifest.to_json())
    return folder


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir.create(tmp_path / "moby")
    run.config.write_text("name: moby\n")
    save(run, 9, {"accuracy": 0.5, "loss": 2.25})
    damaged = save(run, 10, {}) / "state.pt"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    return run


def test_a_line_a_checkpoint_newest_first(app: typer.Typer, run: RunDir) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["checkpoints", str(run.path)])
    assert result.exit_code == 0
    _, _, *rows = [line for line in result.output.splitlines() if line.strip()]
    text = " ".join(" ".join(rows).split())
    assert text.startswith("10 2 MiB 1:00:0")
    assert text.index("state.pt has 2097151 bytes") < text.index("9 2 MiB 1:00:0")
    assert "loss 2.2500, accuracy 0.5000 valid" in text


def test_json_has_every_number(app: typer.Typer, run: RunDir) -> None:
    result = CliRunner().invoke(app, ["checkpoints", str(run.path), "--json"])
    newest, older = json.loads(result.output)
    assert (newest["step"], newest["valid"], len(newest["problems"])) == (10, False, 1)
    assert (older["step"], older["valid"], older["problems"]) == (9, True, [])
    assert older["metrics"] == {"accuracy": 0.5, "loss": 2.25}
    assert older["path"] == str(run.checkpoint_of(9))


def test_a_run_without_checkpoints(app: typer.Typer, tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "new")
    run.config.write_text("name: new\n")
    assert CliRunner().invoke(app, ["checkpoints", str(run.path)]).output == f"{run.path} has no checkpoint\n"
    assert json.loads(CliRunner().invoke(app, ["checkpoints", str(run.path), "--json"]).output) == []


def test_what_is_no_run_is_a_bad_request(app: typer.Typer, tmp_path: Path) -> None:
    for folder, problem in ((tmp_path / "none", "there is no run directory"), (tmp_path, "is not a run directory")):
        error = CliRunner().invoke(app, ["checkpoints", str(folder)]).exception
        assert isinstance(error, ConfigError)
        assert problem in error.problem


def test_it_needs_no_torch(run: RunDir) -> None:
    code = f"""
import sys
from typer.testing import CliRunner
from drumline.cli.app import app
assert CliRunner().invoke(app, ["checkpoints", {str(run.path)!r}]).exit_code == 0
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
