"""`drumline plan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from drumline.cli.app import app
from drumline.config.load import load_config
from drumline.hardware.inventory import detect
from drumline.plan.resolve import resolve

runner = CliRunner()


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "data: {kind: random_tokens, num_rows: 100}\n"
        "train: {global_batch: 10, epochs: 2, micro_batch: 2}\n"
        "hardware: {device: cpu, num_processes: 2}\n"
    )
    return path


def test_the_table_says_what_and_why(recipe: Path) -> None:
    result = runner.invoke(app, ["plan", str(recipe)], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for row in (
        ("accumulation", "3", "10 samples an update over 2 shards: 5 each, in 3 passes of at most 2"),
        ("steps", "20", "2 epochs of 10 updates = 20"),
        ("gpus", "none", "the CPU needs none"),
    ):
        assert any(all(cell in line for cell in row) for line in result.stdout.splitlines()), row


def test_what_is_not_known_is_said(recipe: Path) -> None:
    result = runner.invoke(app, ["plan", str(recipe), "--set", "data=null"], env={"COLUMNS": "200"})
    assert any("steps" in line and "not known yet" in line for line in result.stdout.splitlines())


def test_json_is_the_plan(recipe: Path) -> None:
    result = runner.invoke(app, ["plan", str(recipe), "--json", "--set", "train.max_steps=3"])
    assert result.exit_code == 0
    plan = resolve(load_config(recipe, ["train.max_steps=3"]), detect())
    assert json.loads(result.stdout) == {**plan.to_json(), "gpus": list(plan.gpus)}
    assert plan.steps == 3


def test_what_is_refused_ends_with_2(recipe: Path) -> None:
    result = runner.invoke(app, ["plan", str(recipe), "--set", "train.precision=tf32"])
    assert result.exit_code == 2
    assert not result.stdout
    assert "train.precision: tf32 is a mode of NVIDIA GPUs" in result.stderr
