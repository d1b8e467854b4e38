"""The real `drumline tokens`, and what its keys open."""

from __future__ import annotations

import json
import re
from pathlib import Path

from drumline.cli.tokens import day
from drumline.config.service import ServiceConfig
from drumline.jobs.store import open_store, store_url
from drumline.service.access import find_key
from tests.cli.test_serve import drumline, inside, refused


def test_a_key_is_made_shown_once_and_revoked(tmp_path: Path) -> None:
    made = drumline(tmp_path, "tokens", "create", "ann", "--name", "laptop", "--days", "2")
    secret = made.stdout.strip()
    assert re.fullmatch(r"dl_[\w-]{43}", secret) and secret not in made.stderr
    listed = inside(tmp_path, "tokens", "list", "--json").stdout
    [key] = json.loads(listed)
    assert (key["owner"], key["role"], key["name"]) == ("ann", "user", "laptop") and "valid to" in key["state"]
    assert secret not in listed and "hash" not in key
    for file in (tmp_path / "drumline-data").iterdir():
        assert secret.encode() not in file.read_bytes()
    store = open_store(store_url(ServiceConfig(data_dir=tmp_path / "drumline-data")))
    try:
        found = find_key(store, secret, "key", key["created"])
        assert found is not None and found.id == key["id"]
        inside(tmp_path, "tokens", "revoke", key["id"])
        assert find_key(store, secret, "key", key["created"]) is None
        assert [entry.event for entry in store.log.audits().items] == ["key_revoked", "key_created"]
        assert secret not in str(store.log.audits())
    finally:
        store.close()
    assert "revoked 2" in inside(tmp_path, "tokens", "list").stdout


def test_what_cannot_be_meant_is_told(tmp_path: Path) -> None:
    assert "there is no store" in refused(tmp_path, "tokens", "list")
    assert "add --role viewer" in refused(tmp_path, "tokens", "create", "*")
    for days in ("nan", "inf", "36501"):
        assert "--days" in refused(tmp_path, "tokens", "create", "ann", "--days", days)
    assert "is no owner" in refused(tmp_path, "tokens", "create", "a b")
    assert list(tmp_path.iterdir()) == []
    open_store(store_url(ServiceConfig(data_dir=tmp_path / "drumline-data"))).close()
    assert "there is no key 'key-1'" in refused(tmp_path, "tokens", "revoke", "key-1")


def test_moments_that_no_calendar_has_are_shown() -> None:
    assert (day(1e15), day(float("nan")), day(None), day(60.0)) == ("9999-12-31 23:59", "", "", "1970-01-01 00:01")
