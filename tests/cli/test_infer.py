"""`drumline infer` as a real command with real workers: each row once, in order, whatever happens meanwhile."""

from __future__ import annotations

import shutil
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from drumline.predictions import PredictionDir
from drumline.rundir import read_json, read_lines
from tests.cli.prediction import (
    BROKEN,
    LACKING,
    LONG,
    arguments,
    batches_done,
    make_model,
    rows_of,
    write_rows,
)
from tests.cli.real_command import Command, Ended

COUNT = 60


@dataclass(frozen=True)
class Whole:
    """A run of two workers that nobody has disturbed."""

    folder: Path
    model: Path
    data: Path
    ended: Ended

    @property
    def out(self) -> Path:
        return self.folder / "two.jsonl"

    @property
    def directory(self) -> PredictionDir:
        return PredictionDir(self.folder / "two.jsonl.run")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("infer")
    model, data = make_model(folder), write_rows(folder / "in.jsonl", COUNT)
    ended = Command(folder, *arguments(model, data, "two.jsonl", 2)).wait()
    assert ended.status == 0, ended.err
    return Whole(folder, model, data, ended)


def test_each_row_comes_once_in_order_with_its_columns_and_bad_ones_say_why(whole: Whole) -> None:
    rows = rows_of(whole.out)
    assert len(rows) == COUNT
    failed = {number: str(row["error"]) for number, row in enumerate(rows) if row["error"] is not None}
    assert sorted(failed) == sorted([*BROKEN, *LACKING, LONG])
    assert all(failed[number].startswith(f"line {number + 1}: ") for number in BROKEN)
    assert all("text" in failed[number] for number in LACKING)
    assert "512" in failed[LONG] or "tokens" in failed[LONG]
    good = [row for number, row in enumerate(rows) if number not in failed]
    assert [row["id"] for row in good] == [f"r{number}" for number in range(COUNT) if number not in failed]
    assert all(row["keep"] == [int(row["id"][1:])] and row["new_tokens"] <= 16 for row in good)


def test_the_last_line_says_what_came_of_it_and_the_directory_is_private(whole: Whole) -> None:
    *_, common, _, _, last = whole.ended.out.splitlines()
    assert common.startswith("  2 rows failed: ")
    assert last.startswith(f"{whole.out}: 60 rows, 5 of them failed, in "), whole.ended
    assert stat.S_IMODE(whole.directory.path.stat().st_mode) == 0o700
    end = read_json(whole.directory.run.exit)
    assert (end["exit_status"], end["reason"], end["rows_done"], end["restarts"]) == (0, "done", COUNT, 0)
    assert read_json(whole.directory.summary)["num_failed"] == 5
    counted = [list(read_lines(file))[-1] for file in whole.directory.workers.glob("*.jsonl")]
    assert sum(each["rows"] for each in counted) == COUNT - 5


def test_the_same_command_again_finds_its_output(whole: Whole) -> None:
    before = whole.out.stat().st_mtime_ns
    again = Command(whole.folder, *arguments(whole.model, whole.data, "two.jsonl", 1)).wait()
    assert (again.status, again.out) == (0, f"{whole.out} is there already, and whole: 60 rows, 5 of them failed\n")
    assert whole.out.stat().st_mtime_ns == before


def test_another_request_for_that_output_is_refused_by_its_settings(whole: Whole) -> None:
    other = Command(whole.folder, *arguments(whole.model, whole.data, "two.jsonl", seed=3)).wait()
    assert other.status == 2
    assert "this is not the run that is kept in" in other.err and "seed: 0 -> 3" in other.err


def test_what_cannot_be_is_refused_before_anything_is_made(whole: Whole, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("{}\n")
    (tmp_path / "other.jsonl.run").mkdir()
    (tmp_path / "other.jsonl.run" / "work").touch()
    cases = {
        "mine.jsonl": "exists already",
        "/proc/out.jsonl": "cannot be made or written",
        "out.txt": "no ending",
        "other.jsonl": "holds no prediction run",
    }
    for out, problem in cases.items():
        refused = Command(tmp_path, *arguments(whole.model, whole.data, out)).wait()
        assert refused.status == 2 and problem in refused.err, refused
    absent = Command(tmp_path, *arguments(whole.model, tmp_path / "absent.jsonl", "out.jsonl")).wait()
    assert absent.status == 2 and "there is no file" in absent.err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["mine.jsonl", "other.jsonl.run"]


def test_a_dry_run_shows_settings_and_makes_nothing(whole: Whole, tmp_path: Path) -> None:
    shown = Command(tmp_path, *arguments(whole.model, whole.data, "out.jsonl", 3), "--limit", "7", "--dry-run").wait()
    assert shown.status == 0 and "limit: 7" in shown.out
    assert shown.out.splitlines()[-1] == f"# 3 workers on the CPU; ledger: {tmp_path / 'out.jsonl.run'}"
    assert list(tmp_path.iterdir()) == []


def test_one_worker_stopped_and_gone_on_with_gives_the_same_bytes(whole: Whole, tmp_path: Path) -> None:
    out = tmp_path / "one.jsonl"
    with Command(tmp_path, *arguments(whole.model, whole.data, "one.jsonl")) as command:
        command.reaches(PredictionDir(tmp_path / "one.jsonl.run").run.config.is_file)
        second = Command(tmp_path, *arguments(whole.model, whole.data, "one.jsonl")).wait()
        command.reaches(lambda: batches_done(out) >= 1)
        command.send(signal.SIGINT)
        ended = command.wait()
    assert second.status == 2 and "a run goes on in" in second.err
    assert ended.status == 3 and "rows are answered, and the same command goes on" in ended.err, ended
    assert not out.exists() and batches_done(out) < COUNT / 2

    seen = Command(tmp_path, "infer", "--out", "one.jsonl", "--so-far", "part.jsonl").wait()
    assert seen.status == 0, seen.err
    part, answers = rows_of(tmp_path / "part.jsonl"), iter(rows_of(whole.out))
    assert 0 < len(part) < COUNT
    assert all(any(row.items() <= answer.items() for answer in answers) for row in part), "not in order"

    ended = Command(tmp_path, *arguments(whole.model, whole.data, "one.jsonl")).wait()
    assert ended.status == 0 and "which goes on" in ended.out, ended
    assert out.read_bytes() == whole.out.read_bytes()


@pytest.mark.system
def test_a_template_that_asks_for_an_absent_field_is_refused_before_the_model_and_can_be_corrected(
    whole: Whole, tmp_path: Path
) -> None:
    right = [*arguments(whole.model, whole.data, "out.jsonl"), "--limit", "8"]
    ended = Command(tmp_path, *[word.replace("{text}", "{txet}") for word in right]).wait()
    assert ended.status == 2 and "no row has a field 'txet', which the prompt names" in ended.err, ended
    assert not (tmp_path / "out.jsonl").exists()
    assert Command(tmp_path, *right).wait().status == 0
    assert len(rows_of(tmp_path / "out.jsonl")) == 8


@pytest.mark.system
def test_an_empty_file_and_one_row_give_a_whole_file(whole: Whole, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    ended = Command(tmp_path, *arguments(whole.model, tmp_path / "empty.jsonl", "none.parquet")).wait()
    assert ended.status == 0 and ": 0 rows, in" in ended.out, ended
    assert (tmp_path / "none.parquet").exists()
    ended = Command(tmp_path, *arguments(whole.model, whole.data, "one.jsonl", 2), "--limit", "1").wait()
    assert ended.status == 0 and ": 1 rows, in" in ended.out, ended
    assert rows_of(tmp_path / "one.jsonl") == rows_of(whole.out)[:1]


@pytest.mark.system
def test_a_config_file_serves_and_labels_alone_mean_a_choice(whole: Whole, tmp_path: Path) -> None:
    (tmp_path / "infer.yaml").write_text(
        f"model: {{path: {whole.model}}}\nrows: {{files: [{whole.data}]}}\noutput: {{file: out.csv}}\n"
        "hardware: {device: cpu}\n"
    )
    given = ["infer", "--config", "infer.yaml", "--prompt", "Is {text} a whale?", "--labels", "yes, no"]
    ended = Command(tmp_path, *given, "--limit", "6").wait()
    assert ended.status == 0, ended.err
    header, *rows = (tmp_path / "out.csv").read_text().splitlines()
    assert header.split(",")[-3:] == ["prediction", "probabilities", "error"] and len(rows) == 6


@pytest.mark.system
def test_a_run_directory_that_was_never_begun_is_taken_over(whole: Whole, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl.run" / "logs").mkdir(parents=True)
    ended = Command(tmp_path, *arguments(whole.model, whole.data, "out.jsonl"), "--limit", "2").wait()
    assert ended.status == 0, ended.err
    shutil.rmtree(tmp_path / "out.jsonl.run")
    refused = Command(tmp_path, *arguments(whole.model, whole.data, "out.jsonl"), "--limit", "2").wait()
    assert refused.status == 2 and "exists already" in refused.err


@pytest.mark.system
def test_processes_of_torchrun_become_workers_of_one_run(whole: Whole, tmp_path: Path) -> None:
    given = arguments(whole.model, whole.data, "out.jsonl")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ended = subprocess.run(
        [*torchrun, "-m", "drumline", *given], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "out.jsonl").read_bytes() == whole.out.read_bytes()
    assert len(list(PredictionDir(tmp_path / "out.jsonl.run").workers.glob("*.jsonl"))) >= 1
