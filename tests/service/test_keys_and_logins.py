"""Keys and logins over HTTP, and that a secret is told once and then nowhere: no log, no row, no answer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from drumline.jobs.keeper_files import log_of
from drumline.service import streams
from drumline.service.new_keys import new_key
from drumline.service.state import Service
from tests.service.services import KEYED, add_job, bearer, config, finetune, running

JSON = {"Content-Type": "application/json"}
Pair = tuple[TestClient, Service]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Pair]:
    with running(config(tmp_path, access=KEYED)) as pair:
        yield pair


def test_an_admin_makes_lists_and_revokes_keys(service: Pair) -> None:
    client, opened = service
    admin = bearer(opened, "root", "admin")
    made = client.post("/keys", json={"owner": "ann", "role": "user", "expires_in_days": 1}, headers=admin)
    assert made.status_code == 201
    secret, key_id = made.json()["key"], made.json()["id"]
    ann = {"X-API-Key": secret}
    assert client.get("/session", headers=ann).json()["owner"] == "ann"
    listed = client.get("/keys", headers=admin)
    assert secret not in listed.text and {key["owner"] for key in listed.json()["items"]} == {"ann", "root"}
    assert listed.json()["items"][0]["last_used_at"] is not None
    assert client.delete(f"/keys/{key_id}", headers=admin).status_code == 204
    assert client.get("/session", headers=ann).status_code == 401
    assert client.delete("/keys/none", headers=admin).status_code == 404
    events = [audit.event for audit in opened.store.log.audits().items]
    assert events == ["key_refused", "key_revoked", "key_created"]


@pytest.mark.parametrize("role", ["user", "viewer"])
def test_nobody_else_sees_or_makes_keys(service: Pair, role: str) -> None:
    client, opened = service
    mine = bearer(opened, "ann", role)  # type: ignore[arg-type]
    assert client.get("/keys", headers=mine).status_code == 403
    assert client.post("/keys", json={"owner": "ann", "role": "admin"}, headers=mine).status_code == 403
    assert client.delete("/keys/key-1", headers=mine).status_code == 403
    assert client.get("/metrics", headers=mine).status_code == 403
    assert len(opened.store.keys.list()) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"owner": "*"},
        {"owner": ""},
        {"owner": "a\nb"},
        {"owner": "a", "role": "root"},
        {"owner": "a", "expires_in_days": 0},
    ],
)
def test_keys_that_cannot_be_meant_are_refused(service: Pair, body: dict[str, object]) -> None:
    client, opened = service
    assert client.post("/keys", json=body, headers=bearer(opened, "root", "admin")).status_code == 422


def test_a_viewer_of_all_reads_every_job_and_changes_none(service: Pair) -> None:
    client, opened = service
    job = client.post("/jobs", json=finetune(), headers=bearer(opened, "ann")).json()
    viewer = bearer(opened, "*", "viewer")
    assert client.get(job["links"]["self"], headers=viewer).json()["owner"] == "ann"
    assert client.post(job["links"]["cancel"], headers=viewer).status_code == 403
    assert client.post("/jobs", json=finetune(), headers=viewer).status_code == 403
    assert client.get("/metrics", headers=viewer).status_code == 200


def test_the_page_logs_in_with_a_cookie_that_scripts_cannot_read(service: Pair) -> None:
    client, opened = service
    secret = bearer(opened, "ann")["Authorization"].removeprefix("Bearer ")
    answer = client.post("/session", json={"key": secret})
    assert answer.status_code == 201 and answer.json()["owner"] == "ann" and secret not in answer.text
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/" in cookie and secret not in cookie
    assert client.get("/session").json()["by"] == "cookie"
    assert client.post("/jobs", json=finetune()).json()["code"] == "forbidden"
    page = {"X-Drumline": "1"}
    assert client.post("/jobs", json=finetune(), headers=page).status_code == 202
    evil = {**page, "Origin": "https://evil.example"}
    assert client.post("/jobs", json=finetune(), headers=evil).status_code == 403
    kept = client.cookies["drumline_session"]
    assert client.delete("/session", headers=page).status_code == 204 and "drumline_session" not in client.cookies
    client.cookies.set("drumline_session", kept, domain="localhost.local")
    assert client.get("/session").status_code == 401


def test_a_login_ends_with_its_key(service: Pair) -> None:
    client, opened = service
    secret = bearer(opened, "ann")["Authorization"].removeprefix("Bearer ")
    assert client.post("/session", json={"key": secret}).status_code == 201
    [key] = opened.store.keys.list()
    opened.store.keys.revoke(key.id, 0.0)
    assert client.get("/jobs").status_code == 401
    assert client.post("/session", json={"key": secret}).status_code == 401


@pytest.mark.parametrize("by", ["key", "cookie"])
def test_a_stream_ends_with_the_key_by_which_it_was_opened(
    service: Pair, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(streams, "VALID_S", 0.05)
    client, opened = service
    mine = bearer(opened, "ann")
    job = add_job(opened, "ann", "running")
    log_of(opened.board.folder(job)).write_text("one\n")
    [key] = opened.store.keys.list()
    if by == "cookie":
        secret = mine.pop("Authorization").removeprefix("Bearer ")
        assert client.post("/session", json={"key": secret}).status_code == 201
    # The stream would go on as long as the job: where the key's end does not end it, the service's does.
    ends = [
        threading.Timer(0.15, opened.store.keys.revoke, (key.id, time.time())),
        threading.Timer(8.0, opened.end_streams),
    ]
    for timer in ends:
        timer.start()
    told = client.get(f"/jobs/{job.id}/logs", headers={**mine, "Accept": "text/event-stream"})
    was_ended_by_the_service = opened.streams.closing.is_set()
    for timer in ends:
        timer.cancel()
        timer.join()
    assert not was_ended_by_the_service
    assert told.status_code == 200 and '"one"' in told.text and "event: end" not in told.text


def test_a_login_of_yesterday_is_none_where_nobody_needs_one(tmp_path: Path) -> None:
    with running(config(tmp_path)) as (client, _):
        client.cookies.set("drumline_session", "ended-long-ago", domain="localhost.local")
        assert client.get("/session").json()["by"] == "loopback"


def test_a_key_of_an_older_release_may_end_after_all_calendars(service: Pair) -> None:
    client, opened = service
    admin = bearer(opened, "root", "admin")
    opened.store.keys.add(new_key("ann", "user", 0.0, expires=1e15)[1])
    assert "9999-12-31T23:59:59.000Z" in client.get("/keys", headers=admin).text


def test_secrets_and_texts_are_in_no_log_no_row_and_no_answer(
    service: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    client, opened = service
    admin = bearer(opened, "root", "admin")
    secret = client.post("/keys", json={"owner": "ann"}, headers=admin).json()["key"]
    ann = {"Authorization": f"Bearer {secret}"}
    client.post("/session", json={"key": secret})
    cookie = client.cookies["drumline_session"]
    text = "a text that nobody else may read"
    answers = [
        client.post("/jobs", json=finetune(texts=[text]), headers=ann),
        client.post("/jobs", json=finetune(texts=[text], nosuch=secret), headers=ann),
        client.post(
            "/jobs", content=f'{{"texts": ["{text}", NaN]}}', headers={**ann, "Content-Type": "application/json"}
        ),
        client.post("/session", json={"key": secret, "more": cookie}),
        client.post("/session", json={"key": [secret]}),
        client.get("/jobs", headers=ann),
        client.get(f"/jobs/{secret}", headers={"X-API-Key": f"{secret}x"}),
        client.post("/keys", json={"owner": secret, "role": text}, headers=admin),
    ]
    assert [answer.status_code for answer in answers] == [202, 422, 400, 422, 422, 200, 401, 422]
    rows = b"".join(file.read_bytes() for file in (tmp_path / "data").glob("store.sqlite3*"))
    ours = "\n".join(record.getMessage() for record in caplog.records if not record.name.startswith("httpx"))
    assert "POST /jobs by ann" in ours
    for word in (secret, cookie, text, admin["Authorization"].removeprefix("Bearer ")):
        assert word not in ours and word.encode() not in rows
        assert not any(word in answer.text for answer in answers)
