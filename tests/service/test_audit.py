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


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=201", "cursor=x", "cursor=9999999999", "cursor=", "more=1", "created_after=soon"]
)
def test_a_query_that_cannot_be_meant_is_refused(service: Pair, query: str) -> None:
    client, opened = service
    assert client.get(f"/audit?{query}", headers=bearer(opened, "root", "admin")).status_code == 422


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("who=ann", "0134"),
        ("who=key-1", "01"),
        ("who=ann%20(key-1)", "01"),
        ("who=Ann", "6"),
        ("who=KEY-1", "6"),
        ("who=an", ""),
        ("who=a%25", ""),
        ("who=10.0.0.9", "5"),
        ("event=login", "13"),
        ("event=login&event=key_refused", "135"),
        ("who=ann&event=login", "13"),
        ("created_after=1970-01-01T00:00:03Z", "3456"),
        ("created_before=1970-01-01T00:00:03Z", "012"),
        ("created_after=1970-01-01T00:00:01Z&created_before=1970-01-01T00:00:03Z&who=ann", "1"),
    ],
)
def test_it_is_searched_by_who_event_and_time(service: Pair, query: str, told: str) -> None:
    client, opened = service
    admin = bearer(opened, "root", "admin")
    entries = [
        ("job.cancel", "ann (key-1)"),
        ("login", "ann (key-1)"),
        ("job.cancel", "joann (key-11)"),
        ("login", "ann (key-2)"),
        ("defaults.set", "ann"),
        ("key_refused", "nobody (10.0.0.9)"),
        ("job.submit", "Ann (KEY-1)"),
    ]
    for number, (event, who) in enumerate(entries):
        opened.store.log.audit(event, who, str(number), float(number))
    page = client.get(f"/audit?{query}", headers=admin).json()
    assert "".join(sorted(entry["what"] for entry in page["items"])) == told and page["total"] == len(told)
    first = client.get(f"/audit?limit=1&{query}", headers=admin).json()
    assert first["items"] == page["items"][:1] and (first["next"] is not None) == (len(told) > 1)


def test_who_has_the_log_already_is_told_so(service: Pair) -> None:
    client, opened = service
    admin = bearer(opened, "root", "admin")
    known = {**admin, "If-None-Match": client.get("/audit", headers=admin).headers["ETag"]}
    assert client.get("/audit", headers=known).status_code == 304
    opened.store.log.audit("job.cancel", "ann", "job-1", 1.0)
    assert client.get("/audit", headers=known).status_code == 200


def test_logins_refused_keys_plans_and_work_on_gpus_stand_there_with_the_key_by_which_they_came(service: Pair) -> None:
    client, opened = service
    admin, ann = bearer(opened, "root", "admin"), bearer(opened, "ann")
    secret = ann["Authorization"].removeprefix("Bearer ")
    page = {"X-Drumline": "1"}
    client.post("/session", json={"key": secret})
    client.delete("/session", headers=page)
    body = {"model_name": "tiny", "dataset_config": {"texts": ["a", "b"]}}
    plan = client.post("/multigpu/training/config", json=body, headers=ann).json()["config_id"]
    assert client.delete(f"/multigpu/training/config/{plan}", headers=ann).status_code == 204
    assert client.post("/multigpu/resources/manage", json={"action": "cleanup"}, headers=ann).status_code == 200
    for _ in range(3):
        assert client.post("/session", json={"key": f"{secret}x"}).status_code == 401
        assert client.get("/jobs", headers={"X-API-Key": f"{secret}y"}).status_code == 401
    answer = client.get("/audit", headers=admin)
    [mine] = opened.store.keys.list("ann")
    who = f"ann ({mine.id})"
    assert [(entry["event"], entry["who"]) for entry in reversed(answer.json()["items"])] == [
        ("login", who),
        ("logout", who),
        ("plan.keep", who),
        ("plan.delete_data", who),
        ("resources.cleanup", who),
        ("login_refused", "nobody (testclient)"),
        ("key_refused", "nobody (testclient)"),
    ]
    assert secret not in answer.text


def test_refusals_that_were_counted_are_written_when_the_service_ends(tmp_path: Path) -> None:
    for _ in range(2):
        with running(config(tmp_path, access=KEYED)) as (client, opened):
            for _ in range(3):
                client.get("/jobs", headers={"X-API-Key": "dl_no_such_key"})
            told = [entry.what for entry in opened.store.log.audits().items]
    assert told == ["an unknown key", "an unknown key, the last of 2 more", "an unknown key"]
