"""The run directory's writers and readers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drumline.errors import ConfigError, DrumlineError, MissingExtra, RunDirExists
from drumline.rundir import LineWriter, RunDir, read_json, read_lines, write_atomic, write_json


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


def test_errors_say_what_to_do_and_travel_between_processes() -> None:
    import pickle

    for error in (ConfigError("a is wrong", "mend a"), MissingExtra("matplotlib", "report")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.exit_status) == (type(error), str(error), 2)
    assert str(ConfigError("a is wrong", "mend a")) == "a is wrong\n  fix: mend a"
    assert DrumlineError("x", "y").exit_status == 1
