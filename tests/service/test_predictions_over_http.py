"""Jobs that predict over HTTP: asked for, told of by rows, their answers fetched, and nobody else's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from drumline.jobs.keeper_files import answers_of, run_of
from drumline.jobs.records import Job, Work
from drumline.predictions import PredictionDir
from drumline.service.state import Service
from tests.cli.simulated_prediction import prepare
from tests.service.services import KEYED, add_job, bearer, config, running

ASKED = {
    "kind": "infer",
    "model_name": "tiny",
    "texts": [{"id": 7, "text": "one"}, "two"],
    "columns": {"id": "id"},
    "task": {"kind": "classify"},
    "output": "csv",
}
RESULT = {"output_path": "/x/answers.csv", "rows": 2, "rows_failed": 1, "summary": {"labels": {"a": 1}}}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[TestClient, Service]]:
    with running(config(tmp_path)) as pair:
        yield pair


def add(opened: Service, owner: str = "local", state: Any = "succeeded", output: Any = "csv", **values: Any) -> Job:
    job = add_job(opened, owner, state, work=Work("infer", {}, "/m", "tiny", output=output), **values)
    prepare(PredictionDir(run_of(opened.board.folder(job)).path), 2)
    return job


def test_one_is_queued_listed_cancelled_and_done_again(service: tuple[TestClient, Service]) -> None:
    client, _ = service
    answer = client.post("/jobs", json=ASKED)
    job = answer.json()
    assert answer.status_code == 202 and (job["kind"], job["model_name"]) == ("infer", "tiny")
    assert job["links"]["output"] == f"/jobs/{job['id']}/output"
    assert client.get("/jobs?kind=infer").json()["total"] == 1 and client.get("/jobs?kind=train").json()["total"] == 0
    waiting = client.get(job["links"]["output"])
    assert (waiting.status_code, waiting.json()["code"]) == (409, "conflict")
    assert client.get(job["links"]["config"]).json()["requested"]["task"] == {"kind": "classify"}
    assert client.post(job["links"]["cancel"]).json()["state"] == "cancelled"
    assert (
        client.post(job["links"]["retry"], json={"from_checkpoint": True}).json()["detail"].endswith("answered no row")
    )
    assert client.post(job["links"]["retry"]).json()["kind"] == "infer"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task": {"kind": "guess"}}, "task"),
        ({"settings": {"model.trust_remote_code": True}}, "runs code"),
        ({"settings": {"run_dir": "/tmp/x"}}, "run_dir"),
        ({"output": "xlsx"}, "output"),
        ({"texts": None, "path": "/etc/passwd"}, "not below"),
        ({"model_name": "/etc"}, "no model"),
        ({"task": "classify"}, "task"),
    ],
)
def test_a_request_that_cannot_be_meant_is_told(
    service: tuple[TestClient, Service], change: dict[str, Any], words: str
) -> None:
    answer = service[0].post("/jobs", json={**ASKED, **change})
    assert answer.status_code == 422 and words in answer.text
    assert service[0].get("/jobs").json()["total"] == 0


def test_rows_are_told_instead_of_updates(service: tuple[TestClient, Service]) -> None:
    client, opened = service
    job = add(opened, state="running", attempt=1)
    opened.store.jobs.tell_progress(job.id, 1, {"rows_done": 3, "rows_total": 8, "rows_failed": 1, "rows_per_s": 1.5})
    told = client.get(f"/jobs/{job.id}").json()
    progress = told["progress"]
    assert [progress[name] for name in ("rows_done", "rows_total", "rows_failed", "rows_per_s")] == [3, 8, 1, 1.5]
    assert progress["step"] is None and told["training_history"] is None


def test_what_a_training_alone_writes_is_empty(service: tuple[TestClient, Service]) -> None:
    client, opened = service
    job = add(opened)
    run_of(opened.board.folder(job)).events.write_text('{"event": "start", "time": 1.0}\n')
    assert client.get(f"/jobs/{job.id}/metrics").json() == {
        "records": [],
        "next": "0",
        "done": True,
        "rewritten": False,
    }
    assert client.get(f"/jobs/{job.id}/events").json()["records"] == [{"event": "start", "time": 1.0}]
    assert client.get(f"/jobs/{job.id}/checkpoints").json() == {"items": []}
    stream = client.get(f"/jobs/{job.id}/metrics", headers={"Accept": "text/event-stream"})
    assert "event: end" in stream.text and "event: record" not in stream.text


def test_worker_logs_are_shown(service: tuple[TestClient, Service]) -> None:
    client, opened = service
    job = add(opened)
    (run_of(opened.board.folder(job)).logs / "worker_0.log").write_text("from worker 0\n")
    assert client.get(f"/jobs/{job.id}/logs?source=worker_0").json()["lines"] == ["from worker 0"]


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("csv", "text/csv; charset=utf-8"),
        ("jsonl", "application/x-ndjson"),
        ("parquet", "application/vnd.apache.parquet"),
    ],
)
def test_answers_are_fetched_as_they_lie(service: tuple[TestClient, Service], form: Any, kind: str) -> None:
    client, opened = service
    job = add(opened, output=form, result=RESULT)
    path = answers_of(opened.board.folder(job), form)
    content = bytes(range(256)) * 1000
    assert client.get(f"/jobs/{job.id}/output").status_code == 404
    path.write_bytes(content)
    answer = client.get(f"/jobs/{job.id}/output")
    assert (answer.status_code, answer.headers["content-type"], answer.content) == (200, kind, content)
    assert answer.headers["content-disposition"] == f'attachment; filename="{job.id}.{form}"'
    assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["cache-control"].startswith(
        "private"
    )
    part = client.get(f"/jobs/{job.id}/output", headers={"Range": "bytes=256-511"})
    assert (part.status_code, part.content) == (206, bytes(range(256)))
    for asked, refused in (("bytes=256000-", (416, "range")), ("lines=1-2", (400, "bad_request"))):
        answer = client.get(f"/jobs/{job.id}/output", headers={"Range": asked})
        assert (answer.status_code, answer.json()["code"]) == refused
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers.get("content-range") == ("bytes */256000" if refused[0] == 416 else None)
    told = client.get(f"/jobs/{job.id}").json()
    assert (told["output_path"], told["rows"], told["rows_failed"]) == ("/x/answers.csv", 2, 1)
    assert told["summary"] == {"labels": {"a": 1}} and "summary" not in client.get("/jobs").json()["items"][0]
    assert client.delete(f"/jobs/{job.id}/data").status_code == 204
    assert client.get(f"/jobs/{job.id}/output").status_code == 404 and not path.exists()


def test_only_predictions_have_answers_and_only_whole_ones(service: tuple[TestClient, Service]) -> None:
    client, opened = service
    trained, failed = add_job(opened, state="succeeded"), add(opened, state="failed")
    answers_of(opened.board.folder(failed), "csv").write_text("half\n")
    assert client.get(f"/jobs/{trained.id}/output").status_code == 404
    assert client.get(f"/jobs/{trained.id}").json()["links"]["output"] is None
    assert client.get(f"/jobs/{failed.id}/output").status_code == 409


def test_answers_are_their_owners(tmp_path: Path) -> None:
    with running(config(tmp_path, access=KEYED)) as (client, opened):
        job = add(opened, "bob")
        answers_of(opened.board.folder(job), "csv").write_text("of bob alone\n")
        address = f"/jobs/{job.id}/output"
        assert client.get(address).status_code == 401
        for role in ("user", "viewer"):
            answer = client.get(address, headers=bearer(opened, "alice", role))
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found") and "alone" not in answer.text
        assert client.get(address, headers=bearer(opened, "bob")).text == "of bob alone\n"
        assert client.get(address, headers=bearer(opened, "root", "admin")).text == "of bob alone\n"
