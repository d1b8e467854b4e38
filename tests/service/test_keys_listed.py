"""The list of keys: pages, filters, and an answer that says that nothing has changed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from drumline.service.new_keys import new_key
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
    for number in range(6):  # pairs that were made at the same moment
        opened.store.keys.add(new_key(f"owner-{number}", "user", float(number // 2))[1])
    told, cursor = [], ""
    while cursor is not None:
        page = client.get(f"/keys?limit=2{cursor and f'&cursor={cursor}'}", headers=admin).json()
        assert page["total"] == 7 and len(page["items"]) <= 2
        told += page["items"]
        cursor = page["next"]
    assert [key["owner"] for key in told[:1]] == ["root"] and len({key["id"] for key in told}) == 7
    made = [key["created_at"] for key in told]
    assert made == sorted(made, reverse=True)


@pytest.mark.parametrize(
    ("query", "owners"),
    [
        ("owner=ann", ["ann"]),
        ("role=user", ["ann", "bob"]),
        ("valid=true", ["ann", "root"]),
        ("valid=false&role=user", ["ann", "bob"]),
        ("role=user&valid=true", ["ann"]),
        ("owner=nobody", []),
    ],
)
def test_they_are_found_by_owner_role_and_whether_they_open_anything(
    service: Pair, query: str, owners: list[str]
) -> None:
    client, opened = service
    admin = bearer(opened, "root", "admin")
    now = time.time()
    opened.store.keys.add(new_key("ann", "user", now, expires=now + 1000)[1])
    opened.store.keys.add(new_key("bob", "user", now, expires=now - 1)[1])
    opened.store.keys.add(gone := new_key("cid", "viewer", now)[1])
    opened.store.keys.revoke(gone.id, now)
    page = client.get(f"/keys?{query}", headers=admin).json()
    assert sorted(key["owner"] for key in page["items"]) == owners and page["total"] == len(owners)


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "cursor=x", "owner=a b", "role=root", "valid=2", "more=1"])
def test_a_query_that_cannot_be_meant_is_refused(service: Pair, query: str) -> None:
    client, opened = service
    assert client.get(f"/keys?{query}", headers=bearer(opened, "root", "admin")).status_code == 422


def test_who_has_the_list_already_is_told_so(service: Pair) -> None:
    client, opened = service
    admin = bearer(opened, "root", "admin")
    client.get("/keys", headers=admin)  # from now on this minute's use is in the list
    known = {**admin, "If-None-Match": client.get("/keys", headers=admin).headers["ETag"]}
    assert client.get("/keys", headers=known).status_code == 304
    client.post("/keys", json={"owner": "ann"}, headers=admin)
    assert client.get("/keys", headers=known).status_code == 200
