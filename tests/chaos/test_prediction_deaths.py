"""Workers of a prediction die at a row, or at any moment: every row has the answer of an undisturbed run, once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from drumline.infer.tries import DIED
from drumline.predictions import ProgressReader
from tests.chaos.prediction_workers import DEADLY
from tests.unit.infer.toy import answer, begin, texts

ROOT = Path(__file__).parents[2]
ROWS = texts(200)


@dataclass(frozen=True)
class Disturbed:
    """How one scenario ended, and an undisturbed run of the same rows."""

    facts: dict[str, Any]
    out: Path
    calm: bytes


def disturb(folder: Path, scenarios: Sequence[str], rows: list[str], seed: int = 0) -> dict[str, Disturbed]:
    """Let scenarios answer these rows, one after the other in one process: most of the time is torch's import."""
    calm = answer(folder / "calm.jsonl", rows)
    for name in scenarios:
        begin(folder / f"{name}.jsonl", rows)
    command = [sys.executable, "-m", "tests.chaos.prediction_workers", str(folder), str(seed), *scenarios]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    return {name: Disturbed(facts[name], folder / f"{name}.jsonl", calm) for name in scenarios}


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Disturbed]:
    return disturb(tmp_path_factory.mktemp("deaths"), ["kill", "crash", "half"], ROWS)


@pytest.mark.parametrize("scenario", ["kill", "crash"])
def test_a_row_at_which_workers_die_is_found_and_reported(scenario: str, disturbed: dict[str, Disturbed]) -> None:
    run = disturbed[scenario]
    found, calm = run.out.read_bytes().splitlines(), run.calm.splitlines()
    assert json.loads(found[DEADLY])["error"] == DIED
    assert found[:DEADLY] + found[DEADLY + 1 :] == calm[:DEADLY] + calm[DEADLY + 1 :]
    assert 5 < run.facts["deaths"] <= 3 + 3 + 3  # whole; halves of a batch of eight rows at most; alone
    assert ProgressReader(run.out.with_name(f"{scenario}.jsonl.run")).look().rows_done == 200


def test_the_rest_do_the_rows_of_a_worker_that_is_killed_half_way(disturbed: dict[str, Disturbed]) -> None:
    run = disturbed["half"]
    assert (run.facts["killed"], run.facts["others"]) == (9, 0)
    assert 100 <= run.facts["done_at_kill"] < 200
    assert run.out.read_bytes() == run.calm


@pytest.mark.system
@pytest.mark.parametrize("seed", range(6))
def test_kills_at_any_moment_change_no_byte(seed: int, tmp_path: Path) -> None:
    run = disturb(tmp_path, ["random"], texts(400), seed)["random"]
    assert run.facts["kills"] >= 1
    assert run.out.read_bytes() == run.calm
