"""Jobs over HTTP: asked for, listed, seen, stopped, done again; answers as DESIGN says."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from drumline.jobs.keeper_files import run_of
from drumline.jobs.requests import Who
from drumline.service.state import Service
from tests.service.services import add_job, config, finetune, running


@pytest.fixture
def service(tmp_path: Path) -> Any:
    with running(config(tmp_path)) as (client, opened):
        yield client, opened


Pair = tuple[TestClient, Service]
ADMIN = Who("local", "admin")


def test_a_job_is_queued_seen_cancelled_and_done_again(service: Pair) -> None:
    client, opened = service
    answer = client.post("/jobs", json=finetune(name="ads", tags=["x"], user_id=123))
    assert answer.status_code == 202
    job = answer.json()
    assert (job["status"], job["name"], job["user_id"], job["tags"]) == ("queued", "ads", "123", ["x"])
    assert answer.headers["Location"] == job["links"]["self"] == f"/jobs/{job['id']}"
    assert client.get(job["links"]["self"]).json()["state"] == "queued"
    assert client.post(job["links"]["retry"]).status_code == 409
    assert client.delete(f"/jobs/{job['id']}/data").status_code == 409
    cancelled = client.post(job["links"]["cancel"]).json()
    assert (cancelled["state"], cancelled["success"]) == ("cancelled", False)
    assert client.post(job["links"]["cancel"]).json()["version"] == cancelled["version"]
    again = client.post(job["links"]["retry"], json={"from_checkpoint": False}).json()
    assert (again["state"], again["retry_of"]) == ("queued", job["id"])
    rows = opened.board.folder(opened.board.get(job["id"], ADMIN)) / "rows.jsonl"
    assert rows.stat().st_mode & 0o777 == 0o600
    assert client.delete(f"/jobs/{job['id']}/data").status_code == 204 and not rows.exists()


def test_lists_are_paged_filtered_and_newest_first(service: Pair) -> None:
    client, opened = service
    ids = [add_job(opened, name=f"n{number}", tags=("odd",) if number % 2 else ()).id for number in range(5)]
    add_job(opened, state="failed", user_id="7", training_type="auto")
    first = client.get("/jobs?limit=2&state=queued").json()
    assert first["total"] == 5 and [item["id"] for item in first["items"]] == ids[:2:-1]
    found, cursor = list(first["items"]), first["next"]
    while cursor is not None:
        page = client.get("/jobs", params={"limit": 2, "state": "queued", "cursor": cursor}).json()
        found, cursor = found + page["items"], page["next"]
    assert [item["id"] for item in found] == ids[::-1]
    for query, count in {
        "tag=odd": 2, "state=failed": 1, "state=failed&state=queued": 6, "user_id=7": 1, "training_type=auto": 1,
        "q=N3": 1, "kind=train": 0, "owner=local": 6, "owner=bob": 0, "created_after=2020-01-01": 6,
        "created_before=2020-01-01T00:00:00Z": 0,
    }.items():  # fmt: skip
        assert client.get(f"/jobs?{query}").json()["total"] == count, query


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=201", "limit=x", "state=odd", "cursor=zzz", "created_after=no", "nosuch=1", "tag=%00"]
)
def test_a_query_that_cannot_be_meant_is_told(service: Pair, query: str) -> None:
    answer = service[0].get(f"/jobs?{query}")
    assert answer.status_code == 422 and answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] in ("invalid", "config") and answer.json()["detail"]


def test_an_answer_that_is_known_already_is_not_sent_again(service: Pair) -> None:
    client, opened = service
    job = add_job(opened, state="running")
    for path in (f"/jobs/{job.id}", "/jobs", f"/jobs/{job.id}/config", f"/jobs/{job.id}/logs"):
        tag = client.get(path).headers["ETag"]
        again = client.get(path, headers={"If-None-Match": tag})
        assert again.status_code == 304 and again.content == b"" and again.headers["ETag"] == tag
    tag = client.get(f"/jobs/{job.id}").headers["ETag"]
    opened.store.jobs.tell_progress(job.id, job.attempt, {"step": 1})
    assert client.get(f"/jobs/{job.id}", headers={"If-None-Match": tag}).json()["progress"]["step"] == 1


def test_an_ended_job_has_its_history_and_files(service: Pair) -> None:
    client, opened = service
    job = add_job(opened, state="succeeded", result={"model_path": "/m", "training_time": 2.0, "best_loss": 1.5})
    run = run_of(opened.board.folder(job))
    run.logs.mkdir(parents=True)
    run.metrics.write_text('{"kind": "train", "step": 1, "loss": 2.0}\n{"kind": "eval", "step": 1, "loss": NaN}\n')
    run.events.write_text('{"kind": "start"}\n')
    run.log_of(0).write_text("from rank 0\n")
    (run.logs / "agent.log").write_text("from the launcher\n")
    run.config.write_text("name: x\ntrain: {epochs: 1}\n")
    run.plan.write_text('{"world_size": 1}')
    told = client.get(f"/jobs/{job.id}").json()
    assert (told["success"], told["model_path"], told["training_time"], told["best_loss"]) == (True, "/m", 2.0, 1.5)
    assert told["training_history"][1] == {"kind": "eval", "step": 1, "loss": None}
    assert "training_history" not in client.get("/jobs").json()["items"][0]
    links = told["links"]
    assert client.get(links["metrics"]).json()["records"][0]["loss"] == 2.0
    assert client.get(links["events"]).json() == {
        "records": [{"kind": "start"}], "next": f"18:{run.events.stat().st_ino}", "done": True, "rewritten": False,
    }  # fmt: skip
    assert told["log_sources"] == ["launcher", "rank_0"] and told["note"] == ""
    assert client.get(links["logs"], params={"source": "rank_0"}).json()["lines"] == ["from rank 0"]
    assert client.get(links["logs"], params={"source": "launcher"}).json()["lines"] == ["from the launcher"]
    assert client.get(links["config"]).json() == {
        "config": {"name": "x", "train": {"epochs": 1}}, "requested": {}, "plan": {"world_size": 1},
    }  # fmt: skip


def test_only_whole_checkpoints_are_listed(service: Pair) -> None:
    client, opened = service
    job = add_job(opened, state="running")
    run = run_of(opened.board.folder(job))
    for step, is_whole in ((5, True), (10, True), (15, False)):
        run.checkpoint_of(step).mkdir(parents=True)
        (run.checkpoint_of(step) / "weights").write_bytes(b"x" * step)
        if is_whole:
            (run.checkpoint_of(step) / "manifest.json").write_text("{}")
    found = client.get(f"/jobs/{job.id}/checkpoints").json()["items"]
    assert [(one["step"], one["bytes"]) for one in found] == [(10, 12), (5, 7)]
    assert found[0]["path"] == str(run.checkpoint_of(10)) and found[0]["written_at"].endswith("Z")


@pytest.mark.parametrize("source", ["rank_x", "../secret", "rows", "rank_0/../../x", "command%00"])
def test_logs_are_no_way_to_other_files(service: Pair, source: str) -> None:
    client, opened = service
    job = add_job(opened)
    assert client.get(f"/jobs/{job.id}/logs?source={source}").status_code == 422


def test_log_pages_follow_each_other(service: Pair) -> None:
    client, opened = service
    job = add_job(opened, state="failed")
    (opened.board.folder(job) / "command.log").write_text("".join(f"line {number}\n" for number in range(25)) + "last")
    lines: list[str] = []
    after = "0"
    while True:
        page = client.get(f"/jobs/{job.id}/logs", params={"after": after, "limit": 10}).json()
        lines, after = lines + page["lines"], page["next"]
        if page["done"]:
            break
    assert lines == [f"line {number}" for number in range(25)] + ["last"]


def test_the_same_request_at_once_from_many_makes_one_job(service: Pair) -> None:
    client, _ = service
    headers = {"Idempotency-Key": "once"}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.post("/jobs", json=finetune(), headers=headers), range(16)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1 and client.get("/jobs").json()["total"] == 1
    other = client.post("/jobs", json=finetune(name="other"), headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    assert client.post("/jobs", json=finetune(), headers={"Idempotency-Key": "x" * 201}).status_code == 422


def test_ten_thousand_texts_of_any_script_are_taken(service: Pair) -> None:
    client, opened = service
    texts = [f'text {number}: שלום 你好 🎉 \u2028 \\ " \t' for number in range(10_000)]
    answer = client.post("/jobs", json=finetune(texts=texts))
    assert answer.status_code == 202, answer.text[:300]
    rows = (opened.board.folder(opened.board.get(answer.json()["id"], ADMIN)) / "rows.jsonl").read_text("utf-8")
    assert [json.loads(line)["text"] for line in rows.split("\n") if line] == texts


def test_every_answer_has_the_headers_that_keep_browsers_in_check(service: Pair) -> None:
    client, _ = service
    for path in ("/jobs", "/jobs/none", "/nowhere", "/healthz", "/metrics", "/openapi.json"):
        found = client.get(path).headers
        assert found["X-Content-Type-Options"] == "nosniff" and "default-src 'none'" in found["Content-Security-Policy"]
        assert found["X-Frame-Options"] == "DENY" and "server" not in found, path


def test_health_says_what_is_looked_after(service: Pair) -> None:
    client, _ = service
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready", "supervised": False}


def test_metrics_tell_of_the_queue(service: Pair) -> None:
    client, opened = service
    add_job(opened)
    add_job(opened, state="failed")
    text = client.get("/metrics").text
    assert 'drumline_jobs{state="queued"} 1.0' in text and 'drumline_jobs{state="failed"} 1.0' in text
    assert "drumline_queue_wait_seconds" in text and "drumline_leases 0.0" in text


def test_an_answer_of_a_store_that_fails_is_a_problem(tmp_path: Path) -> None:
    with running(config(tmp_path)) as (client, opened):
        opened.store.close()
        for file in (tmp_path / "data").glob("store.sqlite3*"):
            file.unlink()
        (tmp_path / "data" / "store.sqlite3").mkdir()
        answer = client.get("/jobs")
        assert (answer.status_code, answer.json()["code"]) == (503, "store") and answer.json()["fix"]
        assert client.get("/healthz").status_code == 200 and client.get("/readyz").status_code == 503


def test_requests_beyond_the_rate_are_told_when_to_come_again(tmp_path: Path) -> None:
    with running(config(tmp_path, access={"requests_per_minute": 3, "changes_per_minute": 1})) as (client, _):
        assert [client.get("/jobs").status_code for _ in range(4)] == [200, 200, 200, 429]
        assert client.post("/jobs", json={}).status_code == 422
        answer = client.post("/jobs", json={})
        assert answer.status_code == 429 and int(answer.headers["Retry-After"]) >= 1 and answer.json()["code"] == "rate"


def test_a_prefix_is_before_everything(tmp_path: Path) -> None:
    with running(config(tmp_path, prefix="/ml/v1")) as (client, _):
        job = client.post("/ml/v1/jobs", json=finetune()).json()
        assert job["links"]["self"] == f"/ml/v1/jobs/{job['id']}" and job["links"]["page"].startswith("/ml/v1/#")
        assert client.get(job["links"]["self"]).status_code == 200 and client.get("/jobs").status_code == 404
        assert "/ml/v1/jobs" in client.get("/ml/v1/openapi.json").json()["paths"]
        assert client.get("/ml/v1/").status_code == 200
