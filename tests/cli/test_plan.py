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
from tests.unit.plan.machines import h100s

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


def test_on_gpus_a_child_counts_model_and_rows(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drumline.hardware.inventory.detect", lambda: h100s(2))
    sets = ["hardware={}", "model.num_layers=1", "data.context=16", "data.vocab_size=100"]
    asked = [argument for each in sets for argument in ("--set", each)]
    result = runner.invoke(app, ["plan", str(recipe), "--json", *asked])
    assert result.exit_code == 0, result.stderr
    plan = json.loads(result.stdout)
    assert plan["kind"] == "ddp"
    assert plan["reasons"]["kind"].startswith("auto: 216,960 parameters x 16 bytes = 3.3 MiB and ")
    assert plan["reasons"]["kind"].endswith(" of activations fit 80 GiB: ddp")
    assert plan["memory_bytes"] > 16 * 216_960
    assert plan["steps"] == 20


def test_what_keeps_the_child_from_counting_is_said(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drumline.hardware.inventory.detect", lambda: h100s(2))
    asked = ["--set", "hardware={}", "--set", "data={kind: text, train: [nowhere.txt]}"]
    result = runner.invoke(app, ["plan", str(recipe), *asked], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "the size of the model is not known: " in result.stderr
    assert "nowhere.txt" in result.stderr
    assert "the size of the model is not known here" in result.stdout
