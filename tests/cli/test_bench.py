"""`drumline bench` as people run it: real workers on the CPU, and what they leave."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from drumline.launcher.spec import MARK
from drumline.rundir import read_lines
from tests.cli.real_command import Command, Ended

pytestmark = pytest.mark.system  # each starts processes to time them

RECIPE = """
model: {num_layers: 1, num_heads: 2, width: 16}
data: {kind: random_tokens, num_rows: 64, vocab_size: 64, context: 8}
train: {global_batch: 8, max_steps: 6, schedule: {warmup_steps: 3}}
evaluate: {every: 2}
hardware: {device: cpu, num_processes: 2}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipe of these tests; benchmarks are kept in it."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "tiny.yaml").write_text(RECIPE)
    return folder


def document(ended: Ended) -> dict[str, Any]:
    """What --json printed: one document and nothing beside it."""
    assert ended.status == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    return found


def test_training_is_timed_on_two_ranks_and_compared_with_the_last_time(folder: Path) -> None:
    arguments = ("bench", "train", "tiny.yaml", "--steps", "8", "--warm-up", "2")
    first = Command(folder, *arguments, "--json").wait()
    found = document(first)
    result = found["result"]
    assert (result["world_size"], result["plan"]["kind"], len(result["memory"])) == (2, "ddp", 2)
    step = result["step_s"]
    assert step["count"] + step["warm_up_dropped"] == 8 and step["low"] <= step["median"] <= step["high"]
    assert result["units_per_s"] == pytest.approx(8 * 8 / step["median"])
    assert all(result["phases"][name] > 0 for name in ("forward_s", "backward_s", "optimizer_s"))
    assert len(result["breakdown"]) == 2 and all(rank["communication_s"] > 0 for rank in result["breakdown"])
    assert result["comparison"] == [] and result["message"].startswith("bound by ")
    assert result["machine"]["before"]["cores"] >= 1
    directory = folder / found["directory"]
    assert {"result.json", "report.html", "config.yaml", "profile", "steps.png"} <= {
        p.name for p in directory.iterdir()
    }
    again = Command(folder, *arguments).wait()
    assert again.status == 0, again.err
    assert "against the baseline: step time" in again.out
    assert [line["kind"] for line in read_lines(folder / "bench/history.jsonl")] == ["train", "train"]


def test_collectives_are_timed_between_two_processes(folder: Path) -> None:
    settings = ("--set", "hardware.device=cpu", "--set", "hardware.num_processes=2", "--largest", "1", "--samples", "2")
    result = document(Command(folder, "bench", "comm", *settings, "--json").wait())["result"]
    assert {row["collective"] for row in result["rows"]} == {"all_reduce", "all_gather", "reduce_scatter", "broadcast"}
    assert [row["bytes"] for row in result["rows"][::4]] == [4096, 16384, 65536, 262144, 2**20]
    for row in result["rows"]:
        factor = 0.5 if row["collective"] in ("all_gather", "reduce_scatter") else 1.0
        assert row["algorithm_bytes_per_s"] == pytest.approx(row["bytes"] / row["seconds"]["median"])
        assert row["bus_bytes_per_s"] == pytest.approx(row["algorithm_bytes_per_s"] * factor)
    assert "bucket" in result["advice"] or "measure larger ones" in result["advice"]


def test_the_loader_is_timed_alone(folder: Path) -> None:
    arguments = ("bench", "data", "tiny.yaml", "--workers", "0,1", "--seconds", "0.3", "--json")
    result = document(Command(folder, *arguments).wait())["result"]
    assert [row["num_workers"] for row in result["rows"]] == [0, 1]
    assert all(row["rows_per_s"] > 0 for row in result["rows"])
    # Two ranks have four rows of each window of eight, in one batch.
    assert result["rows"][0]["batches_per_s"] == pytest.approx(result["rows"][0]["rows_per_s"] / 4)
    assert result["advice"].startswith("loader.num_workers=")


def test_scaling_runs_each_number_of_processes(folder: Path) -> None:
    arguments = ("bench", "scaling", "tiny.yaml", "--processes", "1,2", "--steps", "3", "--json")
    found = document(Command(folder, *arguments).wait())
    rows = found["result"]["rows"]
    batches = [(row["mode"], row["processes"], row["global_batch"]) for row in rows]
    assert batches == [("strong", 1, 8), ("strong", 2, 8), ("weak", 1, 4), ("weak", 2, 8)]
    assert [row["efficiency"] for row in rows if row["processes"] == 1] == [1.0, 1.0]
    parts = {path.name for path in (folder / found["directory"]).iterdir() if path.is_dir()}
    assert parts == {"logs", "strong_1", "strong_2", "weak_1"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("comm", "--set", "hardware.device=cpu"), "one process has nobody"),
        (("data", "tiny.yaml", "--workers", "two"), "--workers"),
        (("train", "nothing.yaml"), "nothing.yaml"),
        (("compare", "--task", "unheard-of", "--peers-dir", "nowhere", "--out", "compared"), "contestants"),
    ],
)
def test_a_bad_request_ends_with_2(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    ended = Command(folder, "bench", *arguments).wait()
    assert ended.status == 2, ended.err
    assert words in ended.err


def test_a_bad_baseline_is_refused_before_anything_is_measured(folder: Path, tmp_path: Path) -> None:
    arguments = ("bench", "train", "tiny.yaml", "--baseline", "nowhere", "--out", str(tmp_path / "out"))
    ended = Command(folder, *arguments).wait()
    assert (ended.status, (tmp_path / "out").exists()) == (2, False)


def test_an_interrupted_one_leaves_neither_processes_nor_files(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Command(folder, "bench", "train", "tiny.yaml", "--steps", "100000", "--out", str(out)) as command:
        command.reaches(lambda: any(path.stat().st_size for path in out.glob("*/metrics.jsonl")))
        [launch] = out.glob("*/logs/launch.json")
        mark = json.loads(launch.read_text())["launch_id"]
        command.send(signal.SIGINT)
        ended = command.wait()
    assert ended.status == 3, ended.err
    assert list(out.iterdir()) == []
    assert [p for p in psutil.process_iter() if mark_of(p) == mark] == []


def mark_of(process: psutil.Process) -> str | None:
    """The launch that a process is of; None where it has ended."""
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else process.environ().get(MARK)
    except (psutil.Error, OSError):
        return None
