"""The peers' adapters on the tiny task, over gloo on two CPU processes, and the benchmark scripts on a tiny shape."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from drumline.rundir import read_json

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=400, env=environ, check=False
    )


@pytest.mark.long
def test_all_contestants_that_are_installed_do_the_same_work(tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    options = {"task": "tiny", "rounds": 1, "peers_dir": str(BENCHMARKS / "peers"), "out": str(tmp_path / "out")}
    request.write_text(json.dumps(options))
    ended = python("-m", "drumline.bench.compare", str(request))
    assert ended.returncode == 0, ended.stderr
    rows = {row["name"]: row for row in read_json(tmp_path / "out/result.json")["contestants"]}
    fabric = rows.pop("Lightning Fabric")
    assert fabric["status"] == ("ran" if find_spec("lightning") else "not installed")
    assert {row["status"] for row in rows.values()} == {"ran"}, [row["why"] for row in rows.values()]
    base = rows["torch DDP by hand"]["losses"]
    assert base[1] < base[0] - 0.05
    alone = rows.pop("drumline single")  # one device of the two: half of the rows
    assert alone["num_devices"] == 1
    for row in rows.values():
        assert row["losses"] == pytest.approx(base, rel=1e-5), row["name"]
        assert row["peak_memory_bytes"] > 10**8 and row["units_per_s"] > 0


@pytest.mark.parametrize(
    ("script", "only", "said"),
    [
        pytest.param(
            "strategies.py", ["decoder/fp32/single", "hf/bf16/ddp"], "| hf | bf16 | ddp | 0 |", marks=pytest.mark.long
        ),
        ("float8.py", ["bf16"], "| 191-200 |"),
        ("llama.py", ["full chunked"], "| ours full chunked |"),
        pytest.param("ddp_scaling.py", ["on"], "recipe on 2 / raw torch DDP on 2 =", marks=pytest.mark.long),
        pytest.param(
            "data_parallel_peers.py", ["hf", "torch"], "hf data_parallel / torch DataParallel =", marks=pytest.mark.long
        ),
    ],
)
def test_a_benchmark_works_and_its_second_call_makes_nothing_again(
    tmp_path: Path, script: str, only: list[str], said: str
) -> None:
    out = tmp_path / "rows.jsonl"
    command = [str(BENCHMARKS / script), str(out), "--tiny", "--rounds", "1", "--only", *only]
    ended = python(*command)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert said in ended.stdout and "FAILED" not in ended.stdout, ended.stdout
    kept = out.read_bytes()
    again = python(*command)
    assert said in again.stdout, again.stdout + again.stderr
    assert out.read_bytes() == kept
