"""Who did what, for admins to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from drumline.service.state import Service
from tests.service.services import KEYED, bearer, config, running

Pair = tuple[TestClient, Service]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Pair]:
    with running(config(tmp_path, access=KEYED)) as pair:
        yield pair


def test_pages_follow_each_other_the_newest_first(service: Pair) -> None:
    client, opened = service
    admin = bearer(opened, "root", "admin")
    for number in range(5):
        opened.store.log.audit("job.cancel", "ann (key-1)", f"job-{number}", 1767323045.678 + number)
    told, cursor = [], ""
    while cursor is not None:
        page = client.get(f"/audit?limit=2{cursor and f'&cursor={cursor}'}", headers=admin).json()
        assert page["total"] == 5 and len(page["items"]) <= 2
        told += page["items"]
        cursor = page["next"]
    assert [entry["what"] for entry in told] == ["job-4", "job-3", "job-2", "job-1", "job-0"]
    last = told[-1]
    assert (last["at"], last["who"], last["event"]) == ("2026-01-02T03:04:05.678Z", "ann (key-1)", "job.cancel")


def test_what_was_done_over_http_stands_there_without_secrets(service: Pair) -> None:
    client, opened = service
    admin = bearer(opened, "root", "admin")
    secret = client.post("/keys", json={"owner": "ann"}, headers=admin).json()["key"]
    answer = client.get("/audit", headers=admin)
    [entry] = answer.json()["items"]
    assert entry["event"] == "key_created" and entry["who"].startswith("root (key-") and secret not in answer.text


@pytest.mark.parametrize(("owner", "role"), [("ann", "user"), ("ann", "viewer"), ("*", "viewer")])
def test_nobody_else_reads_it(service: Pair, owner: str, role: str) -> None:
    client, opened = service
    answer = client.get("/audit", headers=bearer(opened, owner, role))  # type: ignore[arg-type]
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert client.get("/audit").status_code == 401


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "cursor=x", "cursor=9999999999", "cursor=", "more=1"])
def test_a_query_that_cannot_be_meant_is_refused(service: Pair, query: str) -> None:
    client, opened = service
    assert client.get(f"/audit?{query}", headers=bearer(opened, "root", "admin")).status_code == 422
