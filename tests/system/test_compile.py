"""`train.compile` on the CPU, which needs a C++ compiler: the same losses, in one process and in two."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from drumline.rundir import RunDir, read_lines

pytestmark = pytest.mark.system

SETTINGS = [
    "data={kind: random_tokens, num_rows: 16, num_eval_rows: 4, context: 32, vocab_size: 64}",
    "model={kind: decoder, style: llama, num_layers: 2, width: 32, num_heads: 2}",
    "train.max_steps=4",
    "train.global_batch=6",
    "train.micro_batch=2",
    "train.schedule.warmup_steps=1",
    "evaluate.every=end",
    "track.every=1",
]


def losses(folder: Path, name: str, *more: str) -> list[float]:
    """Losses of every update and of the evaluation of one run of the command."""
    sets = [part for setting in (*SETTINGS, *more, f"name={name}") for part in ("--set", setting)]
    command = [sys.executable, "-m", "drumline", "train", "quickstart", *sets]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return [record["loss"] for record in read_lines(RunDir(folder / "runs" / name).metrics)]


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    found = losses(tmp_path_factory.mktemp("eager"), "eager", "hardware.num_processes=1")
    assert len(found) == 6  # one before the first update
    return found


@pytest.mark.parametrize("mode", [pytest.param("whole", marks=pytest.mark.long), "blocks"])
def test_a_compiled_run_has_the_losses_of_an_eager_one(tmp_path: Path, mode: str, eager: list[float]) -> None:
    for processes in (1, 2):
        settings = (f"train.compile={mode}", f"hardware.num_processes={processes}")
        assert losses(tmp_path, f"{mode}-{processes}", *settings) == pytest.approx(eager, rel=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(
            ["train.compile=blocks", "train.checkpointing={kind: selective}"], id="selective", marks=pytest.mark.long
        ),
        pytest.param(["train.compile=whole", "train.checkpointing={kind: full}"], id="full"),
        pytest.param(
            ["train.compile=whole", "train.checkpointing={kind: budget, budget: 0.3}", "task.chunked_loss=true"],
            id="budget",
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_is_computed_twice_changes_no_loss(tmp_path: Path, settings: list[str], eager: list[float]) -> None:
    assert losses(tmp_path, "compiled", *settings, "hardware.num_processes=2") == pytest.approx(eager, rel=1e-5)
