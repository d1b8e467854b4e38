"""The report of a prediction run: what was recorded is on the page, whole, broken or just begun."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from drumline.errors import ConfigError
from drumline.predictions import DONE, PredictionDir
from drumline.rundir import write_json
from drumline.track.prediction import Clock, read_prediction, summarise_prediction, throughput
from drumline.track.prediction_page import prediction_headlines, render_prediction, write_prediction_report
from drumline.track.prediction_plots import classes_of

SUMMARY: dict[str, Any] = {
    "num_rows": 12,
    "num_failed": 2,
    "errors": {"the row has # tokens <b>": 2},
    "lengths": [[8, 5], [16, 7]],
    "labels": {"no": 4, "yes": 6},
    "confusion": {"yes": {"yes": 5, "no": 1}, "no": {"no": 3, "yes": 1}, "$x_1$": {"no": 0}},
    "accuracy": 0.8,
    "f1": {
        "macro": 0.75,
        "micro": 0.8,
        "classes": {"yes": {"precision": 0.8333, "recall": 0.8333, "f1": 0.8333, "num_rows": 6}},
    },
}


def line(time: float, rows: int, **more: float) -> dict[str, Any]:
    return {"time": time, "rows": rows, "failed": 0, "tokens": 10 * rows, "new_tokens": rows, "busy_s": 0.0, **more}


@pytest.fixture
def place(tmp_path: Path) -> PredictionDir:
    """Two workers for ten seconds; then, an hour later, one for ten more."""
    place = PredictionDir(tmp_path / "answers.jsonl.run")
    for folder in (place.windows, place.workers, place.run.logs):
        folder.mkdir(parents=True)
    write_json(place.rows_facts, {"num_rows": 12})
    batches = [{"rows": [2 * n, 2 * n + 1], "width": 4} for n in range(5)]
    write_json(place.window(0), {"batches": batches, "problems": {"10": "no text", "11": "no text"}})
    place.state.write_bytes(bytes([DONE, DONE, DONE, DONE, 0]))
    workers = {
        "one": [line(100.0, 0), line(104.0, 4), line(110.0, 4, busy_s=5.0)],
        "two": [line(100.0, 0), line(110.0, 2, busy_s=10.0)],
        "three": [line(3710.0, 0), line(3720.0, 4, busy_s=10.0, failed=1)],
    }
    for name, lines in workers.items():
        text = "".join(json.dumps(each) + "\n" for each in lines)
        (place.workers / f"{name}.jsonl").write_text(text)
    place.run.config.write_text("model: {path: <m>}\n")
    place.run.events.write_text('{"event": "worker_died", "time": 105.0, "message": "killed"}\n')
    return place


def test_pauses_are_passed_over(place: PredictionDir) -> None:
    workers = read_prediction(place.path).workers
    assert Clock(workers).length == 20.0
    found = throughput(workers)
    assert found.seconds == tuple(range(1, 20, 2))
    assert found.rows_per_s["one"][:3] == (1.0, 1.0, 0.0)
    assert found.rows_per_s["two"][:5] == pytest.approx((0.2,) * 5) and found.rows_per_s["two"][5:] == (0.0,) * 5
    assert found.rows_per_s["three"][5:] == pytest.approx((0.4,) * 5)
    assert sum(map(sum, found.rows_per_s.values())) * 2.0 == pytest.approx(10.0), "no row is lost"
    assert throughput({}).seconds == () and throughput({"one": [line(5.0, 3)]}).seconds == ()


def test_while_it_runs_the_ledger_tells(place: PredictionDir) -> None:
    numbers = summarise_prediction(read_prediction(place.path))
    assert (numbers.rows_done, numbers.rows_failed, numbers.rows_total) == (10, 3, 12)
    assert (numbers.worked_s, numbers.rows_per_s, numbers.tokens_per_s) == (20.0, 0.5, 5.0)
    assert numbers.busy_share == pytest.approx(25 / 30)
    assert numbers.exit_status is None and "still running" in numbers.status
    assert ("rows", "10", "of 12") in list(prediction_headlines(numbers))


def test_the_page_has_what_was_recorded(place: PredictionDir, tmp_path: Path) -> None:
    write_json(place.summary, SUMMARY)
    write_json(place.run.exit, {"exit_status": 0, "reason": "done", "message": ""})
    page = write_prediction_report(place.path, tmp_path / "out")
    names = {path.name for path in page.parent.iterdir()}
    assert names == {"index.html", "throughput.png", "lengths.png", "labels.png", "confusion.png"}
    text = page.read_text()
    for words in (
        "answers.jsonl</h1>", "rows with an error", "the row has # tokens &lt;b&gt;", "F1, macro", "0.7500", "accuracy",
        "0.8333", "worker_died", "three", "&lt;m&gt;", "all 3 workers", "≤ 16",
    ):  # fmt: skip
        assert words in text, words
    assert "<script" not in text and not re.search(r'(src|href)="(?!#)', text), "it loads nothing"


def test_a_run_that_has_hardly_begun_and_one_that_is_broken(tmp_path: Path) -> None:
    place = PredictionDir(tmp_path / "new.run")
    with pytest.raises(ConfigError, match="no prediction run"):
        read_prediction(place.path)
    place.windows.mkdir(parents=True)
    place.workers.mkdir()
    assert "new</h1>" in write_prediction_report(place.path).read_text()
    place.summary.write_text("{")
    place.rows_facts.write_text("[]")
    place.run.config.write_text("a: [")
    (place.workers / "w.jsonl").write_text('{"rows": 1, "time": 1.0}\nnonsense\n{"rows": 2}\n')
    records = read_prediction(place.path)
    assert len(records.notes) >= 3 and len(records.workers["w"]) >= 1
    page = render_prediction(records, summarise_prediction(records), [])
    assert "summary.json cannot be read" in page and "config.yaml cannot be read" in page


def test_classes_are_those_that_were_right_or_predicted() -> None:
    assert classes_of({"b": {"a": 1}, "c": {"b": 2}}) == ["a", "b", "c"]
