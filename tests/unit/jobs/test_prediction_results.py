"""What is told of a prediction while it goes on and once it has ended, and the folder of one that goes on with it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from drumline.config.infer_file import load_inference_config
from drumline.config.service import SchedulingConfig
from drumline.jobs.keeper_files import answers_of
from drumline.jobs.prediction_results import SUMMARY_BYTES, PredictionFacts, PredictionWatch, bounded_summary, has_begun
from drumline.jobs.prediction_retry import bring_prediction, forget_prediction, has_rows_to_go_on
from drumline.jobs.records import Job, Resources, Work
from drumline.jobs.results import progress_of, result_of, watch_of
from drumline.monitor.runs import RunWatch
from drumline.predictions import DONE, PredictionDir
from drumline.rundir import read_json, write_json
from tests.cli.simulated_prediction import answer, prepare


@pytest.fixture
def place(tmp_path: Path) -> PredictionDir:
    place = PredictionDir(tmp_path / "run")
    prepare(place, 6)
    return place


def job_of(kind: str = "infer") -> Job:
    work = Work(kind, {}, "/models/tiny", output="csv")  # type: ignore[arg-type]
    job = Job("a", "ann", work, Resources(), 0.0, "succeeded", devices=("GPU-1", "GPU-2"), attempt=1)
    return Job(**{**vars(job), "used_s": 20.0, "queued_since": 1.0, "started": 3.0})


def worker(place: PredictionDir, name: str, *lines: dict[str, float]) -> None:
    (place.workers / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_pace_is_that_of_the_last_minute(place: PredictionDir) -> None:
    now = [100.0]
    watch = PredictionWatch(place.path, lambda: now[0])
    assert progress_of(watch.look()) == {
        "rows_done": 0, "rows_total": 6, "rows_failed": 0, "energy_j": 0.0, "gpu_s": 0.0,
    }  # fmt: skip
    for number in (0, 1):
        answer(place, number)
    worker(place, "w", {"time": 5.0, "rows": 0}, {"time": 9.0, "rows": 2, "failed": 1, "tokens": 80, "busy_s": 3.0})
    now[0] = 104.0
    found = progress_of(watch.look())
    assert (found["rows_done"], found["rows_failed"], found["rows_per_s"], found["tokens_per_s"]) == (2, 1, 0.5, 20.0)
    assert (found["eta_s"], found["elapsed_s"]) == (8.0, 4.0)
    for later in (170.0, 240.0):  # it stands still
        now[0] = later
        found = progress_of(watch.look())
    assert "rows_per_s" not in found and "eta_s" not in found


def test_before_its_rows_are_read_nothing_is_known(tmp_path: Path) -> None:
    watch = PredictionWatch(tmp_path / "nowhere")
    assert progress_of(watch.look()) == {"energy_j": 0.0, "gpu_s": 0.0}
    result = result_of(job_of(), tmp_path, SchedulingConfig())
    assert (result["rows"], result["output_path"], result["summary"]) == (None, None, None)
    assert isinstance(watch_of(job_of(), tmp_path), PredictionWatch)
    assert isinstance(watch_of(job_of("train"), tmp_path), RunWatch)


def test_what_became_of_it_is_in_its_summary(place: PredictionDir, tmp_path: Path) -> None:
    worker(place, "w1", {"time": 10.0, "tokens": 0}, {"time": 20.0, "tokens": 50, "busy_s": 9.0})
    worker(place, "w2", {"time": 12.0, "tokens": 0}, {"time": 22.0, "tokens": 70, "busy_s": 7.0})
    write_json(place.summary, {"num_rows": 6, "num_failed": 2, "labels": {"yes": 4}})
    answers_of(tmp_path, "csv").write_text("a\n")
    result = result_of(job_of(), tmp_path, SchedulingConfig(cost_per_gpu_hour=3.6))
    assert (result["rows"], result["rows_failed"], result["training_time"]) == (6, 2, 12.0)
    assert result["summary"]["labels"] == {"yes": 4}
    assert result["output_path"] == str(tmp_path / "answers.csv")
    usage = result["usage"]
    assert (usage["useful_seconds"], usage["goodput"], usage["queue_seconds"]) == (8.0, 0.4, 2.0)
    assert usage["cost"] == result["gpu_stats"]["cost"] == pytest.approx(0.04)
    assert usage["energy_j"] is result["gpu_stats"]["energy_j"] is None  # nobody measured it
    json.dumps(result, allow_nan=False)
    assert watch_of(job_of(), tmp_path).look() == PredictionFacts(
        6, 2, 6, 120, 0.5, 10.0, 0.0, 16.0, 12.0, summary=read_json(place.summary)
    )


def test_a_summary_that_is_too_long_loses_its_longest_parts() -> None:
    labels = {str(number): number for number in range(20_000)}
    summary = {"num_rows": 5, "confusion": labels, "labels": labels, "f1": {"macro": 0.5}}
    kept = bounded_summary(summary)
    assert len(json.dumps(kept)) < SUMMARY_BYTES and kept == {"num_rows": 5, "f1": {"macro": 0.5}}
    assert bounded_summary({"labels": {"a": 1}}) == {"labels": {"a": 1}}


def test_it_has_begun_once_something_is_written_anew(place: PredictionDir) -> None:
    for path in place.path.rglob("*"):
        os.utime(path, ns=(1000, 1000))
    assert has_begun(place.path, 1000) and not has_begun(place.path, 1001)
    worker(place, "w2", {"rows": 0})
    assert has_begun(place.path, 1001)
    assert not has_begun(place.path / "nowhere", 0)


def test_another_job_goes_on_with_its_rows(place: PredictionDir, tmp_path: Path) -> None:
    old, new = tmp_path, tmp_path / "new"
    new.mkdir()
    answer(place, 2)
    (place.answers / "w.jsonl").write_text("{}\n")
    rows = {"model": {"path": "m"}, "rows": {"files": [f"{old}/rows.jsonl"]}, "output": {"file": f"{old}/answers.csv"}}
    place.run.config.write_text(yaml.safe_dump(rows))
    sources = [[f"{old}/rows.jsonl", 5, 1]]
    write_json(place.rows_facts, {**read_json(place.rows_facts), "sources": sources})
    write_json(place.run.exit, {"exit_status": 3})
    assert has_rows_to_go_on(old) and not has_rows_to_go_on(new)
    bring_prediction(old, new)
    made = PredictionDir(new / "run")
    assert has_rows_to_go_on(new) and not made.run.exit.exists()
    assert made.rows.read_bytes() == place.rows.read_bytes() and (made.answers / "w.jsonl").is_file()
    assert read_json(made.rows_facts)["sources"] == [[f"{new}/rows.jsonl", 5, 1]]
    config = load_inference_config(made.run.config, {})
    assert (config.rows.files, config.output.file) == ([f"{new}/rows.jsonl"], new / "answers.csv")
    answer(made, 3)
    assert place.state.read_bytes()[3] == 0 and made.state.read_bytes()[2] == DONE, "each has its own state"
    assert [path.name for path in new.iterdir()] == ["run"]


def test_what_is_forgotten_is_gone_wherever_it_lay(place: PredictionDir, tmp_path: Path) -> None:
    (place.answers / "w.jsonl").write_text('{"answers": ["row 0"]}\n')
    answers_of(tmp_path, "csv").write_text("row 0\n")
    (tmp_path / ".answers.csv.tmp").write_text("row 0\n")
    (place.ledger / ".rows.jsonl.tmp").write_text("row 0\n")
    (tmp_path / ".run.0123abcd").mkdir()
    (tmp_path / ".run.0123abcd/rows.jsonl").write_text("row 0\n")
    forget_prediction(tmp_path, "csv")
    left = [path for path in tmp_path.rglob("*") if path.is_file() and b"row" in path.read_bytes()]
    assert sorted(path.name for path in left) == ["000000.json", "rows.json"], "numbers and counts alone"
    forget_prediction(tmp_path, "csv")
