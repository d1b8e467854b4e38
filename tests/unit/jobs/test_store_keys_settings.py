"""Keys, settings, audit events and signs of life in the store."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from drumline.errors import ConfigError, Conflict
from drumline.jobs.store import Beat, Key, Store
from tests.fresh_store import fresh_store

HASH = "0123456789abcdef" * 4
OTHER_HASH = HASH[::-1]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = fresh_store(tmp_path)
    yield store
    store.close()


def test_a_key_is_found_by_its_hash(store: Store) -> None:
    key = store.keys.add(Key("k1", HASH, "ada", "user", created=1.0, name="laptop", expires=10.0))
    assert store.keys.find_by_hash(HASH) == key
    assert store.keys.find_by_hash(OTHER_HASH) is None
    assert store.keys.get("k1") == key
    assert key.is_valid(9.9) and not key.is_valid(10.0)


@pytest.mark.parametrize("key", [Key("k1", OTHER_HASH, "a", "user", 1.0), Key("k2", HASH, "a", "user", 1.0)])
def test_a_key_is_kept_once(store: Store, key: Key) -> None:
    store.keys.add(Key("k1", HASH, "ada", "user", created=1.0))
    with pytest.raises(Conflict):
        store.keys.add(key)


def test_only_hashes_are_kept(store: Store) -> None:
    with pytest.raises(Conflict):
        store.keys.add(Key("k1", "dl_a-secret-by-mistake", "ada", "user", created=1.0))


def test_a_revoked_key_takes_its_sessions_with_it(store: Store) -> None:
    store.keys.add(Key("k1", HASH, "ada", "user", created=1.0))
    store.keys.add(Key("s1", OTHER_HASH, "ada", "user", created=2.0, kind="session", parent="k1", expires=50.0))
    assert store.keys.revoke("k1", 5.0)
    assert store.keys.revoke("k1", 6.0)
    assert not store.keys.revoke("k9", 5.0)
    for hashed in (HASH, OTHER_HASH):
        key = store.keys.find_by_hash(hashed)
        assert key is not None and key.revoked == 5.0 and not key.is_valid(5.0)


def test_sessions_are_apart_from_keys(store: Store) -> None:
    key = store.keys.add(Key("k1", HASH, "ada", "admin", created=1.0))
    login = store.keys.add(Key("s1", OTHER_HASH, "ada", "admin", 2.0, kind="session", parent="k1", expires=50.0))
    assert store.keys.list() == (key,)
    assert store.keys.list(kind=None) == (login, key)
    assert store.keys.list(owner="bob") == ()
    assert store.keys.drop_sessions(50.0) == 0
    assert store.keys.drop_sessions(51.0) == 1
    assert store.keys.list(kind=None) == (key,)


def test_a_use_is_noted_once_a_minute(store: Store) -> None:
    key = store.keys.add(Key("k1", HASH, "ada", "user", created=1.0))
    store.keys.touch(key, 100.0)
    used = replace(key, last_used=100.0)
    assert store.keys.get("k1") == used
    store.keys.touch(used, 159.0)
    assert store.keys.get("k1") == used
    store.keys.touch(used, 160.0)
    assert store.keys.get("k1") == replace(key, last_used=160.0)


def test_documents_keep_their_versions(store: Store) -> None:
    assert store.settings.latest("defaults") is None
    first = store.settings.put("defaults", {"a": [1, 2.5, None]}, "ada", expected=0)
    store.settings.put("plan", {"p": 1}, "ada")
    second = store.settings.put("defaults", {"b": 1}, "bob", expected=1)
    assert (first.version, second.version) == (1, 2)
    assert store.settings.latest("defaults") == second
    assert store.settings.get("defaults", first.id) == first
    assert store.settings.get("plan", first.id) is None


def test_a_document_over_an_older_one_is_refused(store: Store) -> None:
    store.settings.put("defaults", {"a": 1}, "ada")
    with pytest.raises(Conflict):
        store.settings.put("defaults", {"a": 2}, "bob", expected=0)
    latest = store.settings.latest("defaults")
    assert latest is not None and latest.values == {"a": 1}


def test_documents_of_many_at_once_are_numbered_one_by_one(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        put = list(pool.map(lambda number: store.settings.put("plan", {"n": number}, "ada"), range(8)))
    assert sorted(document.version for document in put) == list(range(1, 9))


def test_audit_events_are_listed_newest_first(store: Store) -> None:
    for number in range(5):
        store.log.audit("job.cancel", f"key-{number}", f"job-{number}\0", float(number))
    page = store.log.audits(limit=2)
    assert [(audit.who, audit.at) for audit in page.items] == [("key-4", 4.0), ("key-3", 3.0)]
    assert page.total == 5
    rest = store.log.audits(page.next_cursor)
    assert [audit.who for audit in rest.items] == ["key-2", "key-1", "key-0"]
    assert rest.next_cursor is None


@pytest.mark.parametrize("cursor", ["", "x", "-1", "99999999999", "4000000000", "٣"])
def test_a_place_in_the_log_of_nobody_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(ConfigError, match="cursor"):
        store.log.audits(cursor)


def test_services_are_known_by_their_last_sign(store: Store) -> None:
    store.services.heartbeat("s1", "n1", 11, 1.0)
    store.services.heartbeat("s2", "n1", 12, 2.0)
    store.services.heartbeat("s3", "n2", 13, 2.0)
    store.services.heartbeat("s1", "n1", 11, 3.0)
    assert store.services.alive("n1") == (Beat("s1", "n1", 11, 3.0), Beat("s2", "n1", 12, 2.0))
    assert store.services.alive("n1", since=3.0) == (Beat("s1", "n1", 11, 3.0),)
    store.services.forget("s1")
    store.services.heartbeat("s4", "n1", 14, 100_000.0)
    assert store.services.alive("n1") == (Beat("s4", "n1", 14, 100_000.0),)
