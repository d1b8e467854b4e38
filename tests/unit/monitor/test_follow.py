"""Following a file that grows, is torn, and is written anew."""

from __future__ import annotations

from pathlib import Path

from drumline.monitor.follow import Follower
from drumline.rundir import TORN, LineWriter, keep_lines


def test_each_record_is_given_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    follower = Follower(path)
    assert follower.read() == []
    writer = LineWriter(path)
    writer.write({"step": 1, "time": 0})
    assert follower.read() == [{"step": 1, "time": 0}]
    assert follower.read() == []
    writer.write({"step": 2, "time": 0})
    writer.write({"step": 3, "time": 0})
    writer.close()
    assert [record["step"] for record in follower.read()] == [2, 3]
    assert not follower.rewritten


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    follower = Follower(path)
    path.write_bytes(b'{"step": 1}\n{"st')
    assert follower.read() == [{"step": 1}]
    with path.open("ab") as file:
        file.write(b'ep": 2}\n')
    assert follower.read() == [{"step": 2}]


def test_torn_lines_and_what_is_no_record_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"st' + TORN + b'nonsense\n[1]\n{"step": 2}\n')
    assert Follower(path).read() == [{"step": 2}]


def test_a_file_that_was_written_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = LineWriter(path)
    for step in (1, 2, 3):
        writer.write({"step": step})
    writer.close()
    follower = Follower(path)
    assert len(follower.read()) == 3
    keep_lines(path, lambda record: record["step"] < 3)
    assert [record["step"] for record in follower.read()] == [1, 2]
    assert follower.rewritten
    assert follower.read() == []
    assert not follower.rewritten
