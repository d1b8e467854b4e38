from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drumline.infer.records import Answer, Prepared
from drumline.infer.worker_record import EVERY_S, Work, WorkerRecord, work_of, worker_name
from drumline.rundir import read_lines


def test_lines_are_sums_and_come_every_few_seconds(tmp_path: Path) -> None:
    now = 100.0
    record = WorkerRecord(tmp_path / "workers", "me", clock=lambda: now)
    record.add(Work(rows=4, failed=1, tokens=30, new_tokens=10, busy_s=0.5, batches=1))
    record.tick()
    now += EVERY_S
    record.tick()
    record.add(Work(rows=2, tokens=5, busy_s=0.25, batches=1))
    record.tick()
    record.close()
    record.close()
    lines = [{**line, "time": 0, "beat": 0} for line in read_lines(tmp_path / "workers" / "me.jsonl")]
    assert lines == [
        {"rows": 0, "failed": 0, "tokens": 0, "new_tokens": 0, "busy_s": 0.0, "batches": 0, "time": 0, "beat": 0},
        {"rows": 4, "failed": 1, "tokens": 30, "new_tokens": 10, "busy_s": 0.5, "batches": 1, "time": 0, "beat": 0},
        {"rows": 6, "failed": 1, "tokens": 35, "new_tokens": 10, "busy_s": 0.75, "batches": 2, "time": 0, "beat": 0},
    ]


def test_what_a_batch_comes_to() -> None:
    prepared = {3: Prepared(3, 10, 20), 5: Prepared(5, 7, 17)}
    answers: list[Answer] = [{"answer": "a", "new_tokens": 4, "error": None}, {"error": "bad"}]
    assert work_of(answers, prepared, 1.5) == Work(rows=2, failed=1, tokens=21, new_tokens=4, busy_s=1.5, batches=1)


@pytest.mark.parametrize("value", ["x", [1, 2], 2.5, True, -3, 10**50, None], ids=str)
def test_a_column_of_that_name_that_counts_no_tokens_is_no_error(value: Any) -> None:
    answers: list[Answer] = [{"new_tokens": value}, {"new_tokens": 4}]
    assert work_of(answers, {3: Prepared(3, 10, 20)}, 1.5).new_tokens == 4


def test_a_line_says_when_the_main_thread_gave_its_last_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.time", lambda: now)
    record = WorkerRecord(tmp_path, "me", clock=lambda: now)
    now = 107.25
    record.beat()
    now = 150.0
    record.tick()
    record.close()
    lines = [(line["time"], line["beat"]) for line in read_lines(tmp_path / "me.jsonl")]
    assert lines == [(100.0, 100.0), (150.0, 107.25), (150.0, None)]


def test_two_workers_of_one_process_have_two_names() -> None:
    assert worker_name() != worker_name()
