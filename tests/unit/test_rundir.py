"""The run directory's writers and readers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from drumline.errors import ConfigError, DrumlineError, MissingExtra, RunDirExists
from drumline.rundir import (
    LineWriter,
    Lock,
    RunDir,
    keep_lines,
    read_json,
    read_lines,
    remove_unfinished,
    write_atomic,
    write_json,
)


def test_a_directory_is_its_owners_and_is_made_once(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "runs" / "first")
    assert [path.stat().st_mode & 0o777 for path in (run.path, run.logs)] == [0o700, 0o700]
    (run.path / "kept").touch()
    with pytest.raises(RunDirExists, match="exists already") as caught:
        RunDir.create(run.path)
    assert (caught.value.exit_status, caught.value.code) == (2, "run_dir_exists")
    assert (run.path / "kept").exists()
    assert run.log_of(3) == run.path / "logs/rank_3.log"
    assert run.error_of(3) == run.path / "logs/rank_3.error.json"
    assert run.checkpoint_of(40) == run.path / "checkpoints/step_40"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_json(path, {"a": 1})
    assert read_json(path) == {"a": 1}
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "\ud800")
    assert read_json(path) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]


def test_lines_come_back_in_order_and_a_torn_last_one_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert list(read_lines(path)) == []
    for steps in ((1, 2), (3,)):
        writer = LineWriter(path)
        for step in steps:
            writer.write({"step": step, "loss": float("nan")})
        writer.close()
        writer.close()
    with path.open("ab") as file:
        file.write(b'{"step": 4, "lo')
    records = list(read_lines(path))
    assert [record["step"] for record in records] == [1, 2, 3]
    assert all(record["time"] > 1.7e9 for record in records)
    assert "NaN" in json.dumps(records[0])


def test_a_torn_line_stays_apart_from_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2, "lo')
    writer = LineWriter(path)
    writer.write({"step": 3})
    writer.write({"step": 4})
    writer.close()
    assert [record["step"] for record in read_lines(path)] == [1, 3, 4]


@pytest.mark.parametrize("tail", [b"", b'{"step": 5, "lo', b'{"step": 5, "lo\x00\n'])
def test_lines_are_kept_or_dropped_and_torn_ones_go(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    assert keep_lines(path, lambda record: True) == 0
    lines = [json.dumps({"step": step, "loss": loss}) for step, loss in ((1, 0.5), (2, float("nan")), (3, 1e-300))]
    path.write_bytes("".join(f"{line}\n" for line in lines).encode() + tail)
    assert keep_lines(path, lambda record: True) == 0
    assert path.read_text().splitlines() == lines
    assert keep_lines(path, lambda record: record["step"] < 3) == 1
    assert path.read_text().splitlines() == lines[:2]
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_directory_is_one_runs_at_a_time(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    first, other = Lock(run, "run"), Lock(run, "launch")
    with pytest.raises(RunDirExists, match=f"a run goes on in .*run already: process {os.getpid()} on ") as caught:
        Lock(run, "run")
    assert "wait for its end" in caught.value.fix
    first.release()
    first.release()
    second = Lock(run, "run")
    with pytest.raises(RunDirExists):
        Lock(run, "run", wait_s=0.01)
    second.release()
    other.release()


def test_errors_say_what_to_do_and_travel_between_processes() -> None:
    import pickle

    for error in (ConfigError("a is wrong", "mend a"), MissingExtra("matplotlib", "report")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.exit_status) == (type(error), str(error), 2)
    assert str(ConfigError("a is wrong", "mend a")) == "a is wrong\n  fix: mend a"
    assert DrumlineError("x", "y").exit_status == 1


def test_what_a_dead_process_left_beside_a_folder_goes(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    left, kept = tmp_path / f".out.{child.pid}.tmp", tmp_path / f".out.{os.getpid()}.tmp"
    other = tmp_path / f".another.{child.pid}.tmp"
    for folder in (left, kept, other):
        folder.mkdir()
    remove_unfinished(tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == sorted([kept, other])
