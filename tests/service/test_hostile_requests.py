"""Requests that are not meant well: every one has a right answer, and none is an error of the service's own."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from drumline.service.guarded import SMALL_BYTES
from tests.service.services import add_job, config, finetune, running

JSON = {"Content-Type": "application/json"}
MIB = 2**20


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with running(config(tmp_path, limits={"max_body_bytes": MIB})) as (client, _):
        yield client


def _deep(depth: int) -> bytes:
    return b'{"kind": "train", "config": ' + b'{"a": ' * depth + b"1" + b"}" * depth + b"}"


@pytest.mark.parametrize("path", ["/jobs", "/keys", "/session"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"model_name": NaN}',
        b'{"settings": {"lr": Infinity}}',
        b'{"settings": {"lr": 1e999}}',
        b'{"settings": {"epochs": ' + b"9" * 5000 + b"}}",
        _deep(100_000),
        b'{"name": "\xff\xfe\xfd"}',
        b'{"name": "\\ud800"}',
        b"{" * 1000,
        b"\x00\x01\x02",
        b"[]",
        b"null",
        b'"text"',
        b"",
        b"{}",
    ],
    ids=lambda body: body[:16].decode("latin-1"),
)
def test_a_body_that_cannot_be_meant_is_a_problem_of_the_request(client: TestClient, path: str, body: bytes) -> None:
    answer = client.post(path, content=body, headers=JSON)
    is_large = path == "/session" and len(body) > SMALL_BYTES  # who has no key is not listened to so long
    assert answer.status_code in ((413,) if is_large else (400, 422)), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] in (("too_large",) if is_large else ("bad_request", "invalid", "config"))
    assert answer.json()["detail"]


@pytest.mark.parametrize(
    "values",
    [
        {"settings": {"epochs": 10**400}},
        {"settings": {"learning_rate": -1}},
        {"settings": {"epochs": -(10**18)}},
        {"resources": {"devices": 10**30}},
        {"resources": {"devices": 0}},
        {"resources": {"priority": 1e9}},
        {"resources": {"time_limit_s": 1e300}},
        {"max_length": -5},
        {"name": "a\u0000b"},
        {"name": "x" * 100_000},
        {"tags": ["t"] * 10_000},
        {"texts": []},
        {"texts": [{"text": {"deep": [[[[1]]]]}}, 3]},
        {"texts": None},
        {"unknown": 1},
        {"model_name": "../../etc/passwd"},
        {"model_name": "/etc"},
        {"texts": None, "path": "/etc/passwd"},
        {"texts": None, "path": "../../../etc/passwd"},
        {"texts": None, "path": "\u0000"},
        {"settings": {"run_dir": "/tmp/elsewhere"}},
        {"settings": {"model.trust_remote_code": True}},
        {"settings": {"__class__": "x", "": "", "a..b": 1}},
    ],
    ids=lambda values: json.dumps(values)[:40],
)
def test_values_beyond_what_is_sensible_are_refused_with_words(client: TestClient, values: dict[str, Any]) -> None:
    answer = client.post("/jobs", content=json.dumps(finetune(**values)), headers=JSON)
    assert answer.status_code in (400, 422), answer.text[:300]
    assert answer.json()["detail"] and client.get("/jobs").json()["total"] == 0


def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_read(client: TestClient) -> None:
    answer = client.post("/jobs", content=b"x", headers={**JSON, "Content-Length": str(100 * MIB)})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert client.post("/jobs", content=b"x", headers={**JSON, "Content-Length": "9" * 40}).status_code == 413


def test_who_has_no_key_sends_little(client: TestClient) -> None:
    body = json.dumps({f"name {number}": 1 for number in range(900)})
    assert len(body) > SMALL_BYTES
    assert client.post("/session", content=body, headers=JSON).status_code == 413
    assert client.post("/session", content=(b" " * 1024 for _ in range(9)), headers=JSON).status_code == 413
    assert client.post("/session", content='{"key": "none"}' + " " * 8000, headers=JSON).status_code == 401


@pytest.mark.parametrize(
    "values", [{"texts": [1] * 100_000}, {"texts": None, "path": [1] * 100_000}, {"tags": [1] * 100_000}]
)
def test_of_many_wrong_values_the_first_is_told(client: TestClient, values: dict[str, Any]) -> None:
    for path, body in (
        ("/jobs", finetune(**values)),
        ("/multigpu/training/auto", {"model_name": "tiny", "dataset_config": values}),
    ):
        answer = client.post(path, json=body)
        assert answer.status_code == 422 and 1 <= len(answer.json()["errors"]) <= 4


def test_names_without_end_are_no_request(client: TestClient) -> None:
    for body in (names := {f"n{number}": 1 for number in range(20_000)}, finetune(settings=names)):
        answer = client.post("/jobs", json=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
        assert "20,000 names" in answer.json()["detail"].replace("20,003", "20,000")


def test_a_path_does_not_break_the_log(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "drumline.service")
    client.post("/jobs/a%0d%0aPOST%20%1b%5b2J/cancel")
    [told] = [record.getMessage() for record in caplog.records if record.name == "drumline.service"]
    assert told.startswith("POST /jobs/a%0D%0APOST%20%1B%5B2J/cancel by local") and told.isprintable()


def test_an_origin_that_is_none_is_foreign(client: TestClient) -> None:
    answer = client.post("/jobs", json=finetune(), headers={"Origin": "http://["})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_a_body_that_does_not_say_how_large_it_is_is_refused_on_the_way(client: TestClient) -> None:
    answer = client.post("/jobs", content=(b" " * 65536 for _ in range(100 * 16)), headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"])
def test_a_body_of_another_kind_is_refused(client: TestClient, content_type: str) -> None:
    """A page of another site can send such bodies without being asked whether it may."""
    answer = client.post("/jobs", content=json.dumps(finetune()), headers={"Content-Type": content_type})
    assert answer.status_code == 422 and client.get("/jobs").json()["total"] == 0


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/..%2f..%2fetc%2fpasswd",
        "/jobs/%00",
        "/jobs/%ff%fe",
        "/jobs/" + "x" * 5000,
        "/jobs/a%2e%2e/logs",
        "/ui/..%2f..%2fpyproject.toml",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/jobs/%0d%0aSet-Cookie:x=1",
        "/jobs/\u202e",
    ],
)
def test_paths_lead_nowhere_else(client: TestClient, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        answer = client.request(method, path)
        assert answer.status_code in (404, 405, 422), (method, path, answer.status_code)
        assert "set-cookie" not in answer.headers and "root:" not in answer.text


def test_headers_of_any_bytes_are_no_error_of_ours(tmp_path: Path) -> None:
    names = ["Authorization", "X-API-Key", "Cookie", "Host", "Origin", "Accept", "If-None-Match", "Idempotency-Key"]
    names += ["Last-Event-ID", "Content-Type", "Content-Length", "X-Forwarded-For", "Range", "Accept-Encoding"]
    chance = random.Random(8)
    with running(config(tmp_path)) as (client, opened):
        job = add_job(opened, state="failed")
        for _ in range(150):
            name = chance.choice(names)
            value = bytes(chance.choice(range(0x20, 0x100)) for _ in range(chance.choice([0, 1, 7, 300])))
            path, method = chance.choice([("/jobs", "GET"), ("/jobs", "POST"), (f"/jobs/{job.id}/logs", "GET")])
            headers = [(name.encode(), value), (b"content-type", b"application/json")]
            answer = client.request(method, path, content=b"{}" if method == "POST" else None, headers=headers)
            assert answer.status_code < 500, (name, value, answer.text)


def test_what_was_sent_is_not_sent_back(tmp_path: Path) -> None:
    """A page that shows a problem must not show what somebody else slipped in; and texts are nobody else's business."""
    with running(config(tmp_path)) as (client, _):
        answer = client.post("/jobs", json=finetune(texts=["<script>secret text</script>", 5]))
        assert answer.status_code == 422 and "secret text" not in answer.text
