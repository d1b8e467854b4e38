"""metrics.jsonl as it is written."""

from __future__ import annotations

import math
import time
from pathlib import Path

from drumline.rundir import read_lines
from drumline.track.jsonl import JsonlTracker


def test_records_are_lines_with_a_time_and_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tracker = JsonlTracker(path)
    record = {"kind": "train", "step": 10, "loss": math.nan, "unit": "tokens"}
    before = time.time()
    tracker.log(record)
    tracker.log({"kind": "eval", "step": 10, "loss": 2.5, "time": 7.0})
    first, second = read_lines(path)
    tracker.close()
    tracker.close()
    assert record.keys() == {"kind", "step", "loss", "unit"}
    assert before - 0.01 <= first.pop("time") <= time.time() + 0.01
    assert math.isnan(first.pop("loss"))
    assert first == {"kind": "train", "step": 10, "unit": "tokens"}
    assert second == {"kind": "eval", "step": 10, "loss": 2.5, "time": 7.0}


def test_an_existing_file_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2):
        tracker = JsonlTracker(path)
        tracker.log({"step": step})
        tracker.close()
    assert [record["step"] for record in read_lines(path)] == [1, 2]
