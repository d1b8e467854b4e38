"""Who asks: pure decisions over keys in a dictionary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from drumline.config.service import ServiceConfig
from drumline.errors import ConfigError, Forbidden, Unauthorized
from drumline.jobs.store import Key, Store
from drumline.service.access import COOKIE, KEPT_S, Access, Asking, check_keys, hash_of, is_loopback

NOW = 1000.0
LOCAL = {"host": "localhost:8000"}


class Keys:
    """Keys by their hash."""

    def __init__(self, *keys: Key) -> None:
        self.by_hash = {key.hash: key for key in keys}
        self.touched: list[str] = []

    def find_by_hash(self, hashed: str) -> Key | None:
        return self.by_hash.get(hashed)

    def get(self, key_id: str) -> Key | None:
        return next((key for key in self.by_hash.values() if key.id == key_id), None)

    def touch(self, key: Key, at: float) -> None:
        self.touched.append(key.id)


class Log:
    """Audit events: event, who, what."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, str]] = []

    def audit(self, event: str, who: str, what: str, at: float) -> None:
        self.entries.append((event, who, what))


class KeysOnly:
    def __init__(self, *keys: Key) -> None:
        self.keys = Keys(*keys)
        self.log = Log()


def key(secret: str, **values: Any) -> Key:
    return Key(**{"id": "key-1", "hash": hash_of(secret), "owner": "ann", "role": "user", "created": 0.0, **values})


def access(*keys: Key, **settings: Any) -> Access:
    config = ServiceConfig.model_validate(settings)
    return Access(config, cast("Store", KeysOnly(*keys)), lambda: NOW)


def asking(method: str = "GET", client: str | None = "127.0.0.1", cookie: str = "", **headers: str) -> Asking:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Asking(method, {**LOCAL, **named}, {COOKIE: cookie} if cookie else {}, client)


def test_on_loopback_whoever_asks_is_the_machines_own_user() -> None:
    caller = access().caller(asking())
    assert (caller.who.owner, caller.who.role, caller.by) == ("local", "admin", "loopback")


@pytest.mark.parametrize("header", ["authorization", "x_api_key"])
def test_a_key_says_who_asks(header: str) -> None:
    given = {header: "Bearer dl_secret_of_ann" if header == "authorization" else "dl_secret_of_ann"}
    caller = access(key("dl_secret_of_ann"), host="0.0.0.0").caller(asking(client="10.0.0.9", **given))
    assert (caller.who.owner, caller.who.role, caller.who.key_id, caller.name) == ("ann", "user", "key-1", "key-1")


@pytest.mark.parametrize(
    "given",
    [
        {"authorization": "Bearer dl_another"},
        {"authorization": "Basic YW5uOmFubg=="},
        {"authorization": "Bearer "},
        {"authorization": "Bearer " + "x" * 5000},
        {"x_api_key": ""},
        {"x_api_key": "dl_\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9"},
    ],
)
def test_a_key_that_is_none_is_refused_on_loopback_too(given: dict[str, str]) -> None:
    with pytest.raises(Unauthorized):
        access(key("dl_secret_of_ann")).caller(asking(**given))


def test_a_key_is_looked_up_once_in_a_moment_and_anew_after_a_revocation() -> None:
    secret, now = "dl_secret_of_ann", [NOW]
    found = key(secret)
    store = KeysOnly(found)
    tried = Access(ServiceConfig(host="0.0.0.0"), cast("Store", store), lambda: now[0])
    comes, logged_in = asking(x_api_key=secret), asking(cookie=secret)
    assert not tried.knows(comes)
    for _ in range(3):
        assert tried.caller(comes).name == "key-1" and tried.knows(comes)
    assert store.keys.touched == ["key-1"]
    with pytest.raises(Unauthorized):  # a key is no login, kept or not
        tried.caller(logged_in)
    store.keys.by_hash[found.hash] = replace(found, revoked=NOW)  # by another process
    now[0] += KEPT_S / 2
    assert tried.caller(comes).name == "key-1"
    now[0] += KEPT_S
    with pytest.raises(Unauthorized):
        tried.caller(comes)
    store.keys.by_hash[found.hash] = found
    tried.caller(comes)
    store.keys.by_hash[found.hash] = replace(found, revoked=NOW)
    tried.forget()  # by this one
    with pytest.raises(Unauthorized):
        tried.caller(comes)


@pytest.mark.parametrize("values", [{"revoked": NOW - 1}, {"expires": NOW}, {"kind": "session"}])
def test_a_key_past_its_end_or_a_login_is_no_key(values: dict[str, Any]) -> None:
    with pytest.raises(Unauthorized):
        access(key("dl_secret_of_ann", **values)).caller(asking(x_api_key="dl_secret_of_ann"))


@pytest.mark.parametrize(
    ("settings", "client", "headers"),
    [
        ({"host": "0.0.0.0"}, "127.0.0.1", {}),
        ({"host": "127.0.0.1", "access": {"keys": "required"}}, "127.0.0.1", {}),
        ({}, "10.0.0.9", {}),
        ({}, "127.0.0.1", {"x_forwarded_for": "10.0.0.9"}),
        ({}, "127.0.0.1", {"forwarded": "for=10.0.0.9"}),
    ],
)
def test_a_key_is_needed_by_all_who_may_come_from_elsewhere(
    settings: dict[str, Any], client: str, headers: dict[str, str]
) -> None:
    with pytest.raises(Unauthorized, match="needed"):
        access(**settings).caller(asking(client=client, **headers))


@pytest.mark.parametrize("client", ["127.0.0.1", "::1", "127.8.8.8", "::ffff:127.0.0.1", None])
def test_addresses_of_this_machine_need_none(client: str | None) -> None:
    assert access(host="localhost").caller(asking(client=client)).by == "loopback"


def test_without_a_key_a_foreign_name_is_refused() -> None:
    """A page of another site can have its name point to 127.0.0.1."""
    with pytest.raises(Forbidden, match="evil"):
        access().caller(asking(host="evil.example:8000"))
    hosts = {"access": {"allowed_hosts": ["gpu.example"]}}
    assert access(**hosts).caller(asking(host="GPU.example:8000")).by == "loopback"
    assert access(access={"allowed_hosts": ["*"]}).caller(asking(host="any.example")).by == "loopback"
    assert access(host="::1").caller(asking(host="[::1]:8000")).by == "loopback"


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ({}, False),
        ({"origin": "http://localhost:8000"}, False),
        ({"origin": "http://localhost:9999"}, True),
        ({"origin": "https://evil.example"}, True),
        ({"origin": "null"}, True),
        ({"origin": "http://["}, True),
        ({"origin": ""}, True),
        ({"origin": "http://"}, True),
        ({"sec_fetch_site": "cross-site"}, True),
        ({"sec_fetch_site": "same-origin"}, False),
        ({"origin": "https://ours.example"}, False),
    ],
)
def test_pages_of_other_sites_change_nothing(headers: dict[str, str], is_refused: bool) -> None:
    door = access(access={"allowed_origins": ["https://ours.example"]})
    if is_refused:
        with pytest.raises(Forbidden, match="another site"):
            door.caller(asking("POST", **headers))
    else:
        assert door.caller(asking("POST", **headers)).by == "loopback"


def test_a_login_stands_for_its_key_and_changes_need_the_pages_header() -> None:
    session = key("a-random-cookie", id="session-1", kind="session", parent="key-1")
    door = access(session, host="0.0.0.0")
    caller = door.caller(asking(cookie="a-random-cookie"))
    assert (caller.by, caller.name, caller.who.key_id) == ("cookie", "key-1", "key-1")
    with pytest.raises(Forbidden, match="X-Drumline"):
        door.caller(asking("POST", cookie="a-random-cookie"))
    assert door.caller(asking("POST", cookie="a-random-cookie", x_drumline="1")).session == "session-1"
    with pytest.raises(Forbidden, match="another site"):
        door.caller(asking("DELETE", cookie="a-random-cookie", x_drumline="1", origin="https://evil.example"))


def test_a_key_is_no_cookie_and_an_ended_login_is_told() -> None:
    door = access(key("dl_secret_of_ann"), host="0.0.0.0")
    with pytest.raises(Unauthorized, match="login has ended"):
        door.caller(asking(cookie="dl_secret_of_ann"))


def test_where_keys_are_off_a_proxy_decides_who_comes() -> None:
    door = access(access={"keys": "off"})
    assert door.caller(asking(x_forwarded_for="10.0.0.9")).by == "loopback"
    with pytest.raises(Unauthorized):
        door.caller(asking(x_api_key="dl_no_such_key"))


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"revoked": NOW - 1}, "key-1 of ann, revoked"),
        ({"expires": NOW}, "key-1 of ann, past its end"),
        ({"kind": "session", "id": "session-1"}, "an unknown key"),
        ({"hash": "0" * 64}, "an unknown key"),
    ],
)
def test_a_refused_key_is_noted_by_its_id_never_by_itself(values: dict[str, Any], what: str) -> None:
    store = KeysOnly(key("dl_secret_of_ann", **values))
    door = Access(ServiceConfig(), cast("Store", store), lambda: NOW)
    for _ in range(3):
        with pytest.raises(Unauthorized):
            door.caller(asking(client="10.0.0.9", x_api_key="dl_secret_of_ann"))
    assert store.log.entries == [("key_refused", "nobody (10.0.0.9)", what)]


def test_who_gives_no_key_and_a_login_that_has_ended_are_not_noted() -> None:
    store = KeysOnly()
    door = Access(ServiceConfig(host="0.0.0.0"), cast("Store", store), lambda: NOW)
    for asked in (asking(), asking(cookie="ended_long_ago"), asking(authorization="Basic YW5uOmFubg==")):
        with pytest.raises(Unauthorized):
            door.caller(asked)
    assert store.log.entries == []


def test_a_use_is_noted() -> None:
    store = KeysOnly(key("dl_secret_of_ann"))
    Access(ServiceConfig(), cast("Store", store), lambda: NOW).caller(asking(x_api_key="dl_secret_of_ann"))
    assert store.keys.touched == ["key-1"]


def test_keys_cannot_be_off_where_others_reach_it() -> None:
    check_keys(ServiceConfig.model_validate({"access": {"keys": "off"}}))
    with pytest.raises(ConfigError, match="reached from elsewhere"):
        check_keys(ServiceConfig.model_validate({"host": "0.0.0.0", "access": {"keys": "off"}}))


def test_loopback_is_what_only_this_machine_reaches() -> None:
    found = {host: is_loopback(host) for host in ("127.0.0.1", "::1", "[::1]", "localhost", "0.0.0.0", "::", "gpu")}
    assert [host for host, is_it in found.items() if is_it] == ["127.0.0.1", "::1", "[::1]", "localhost"]


def test_a_place_that_is_empty_is_nobodys_own() -> None:
    door = access(access={"allowed_hosts": ["*"]})
    with pytest.raises(Forbidden, match="another site"):
        door.caller(asking("POST", host="", origin="http://"))


def test_where_nobody_needs_a_login_an_ended_one_is_none() -> None:
    ended = key("a-random-cookie", id="session-1", kind="session", expires=NOW)
    caller = access(ended).caller(asking(cookie="a-random-cookie"))
    assert (caller.by, caller.who.owner) == ("loopback", "local")
    with pytest.raises(Forbidden, match="evil"):
        access(ended).caller(asking(cookie="a-random-cookie", host="evil.example"))
    for settings, client in (({"host": "0.0.0.0"}, "127.0.0.1"), ({}, "10.0.0.9")):
        with pytest.raises(Unauthorized, match="login has ended"):
            access(ended, **settings).caller(asking(cookie="a-random-cookie", client=client))
    assert access(key("a-random-cookie", kind="session")).caller(asking(cookie="a-random-cookie")).who.owner == "ann"


@pytest.mark.parametrize("by", ["key", "cookie"])
def test_what_was_valid_is_looked_at_again(by: str) -> None:
    kept = key("a-random-secret", id="own", kind="session" if by == "cookie" else "key", expires=NOW + 5)
    door = access(kept)
    caller = door.caller(asking(cookie="a-random-secret") if by == "cookie" else asking(x_api_key="a-random-secret"))
    assert door.is_valid(caller)
    for other in (replace(kept, expires=NOW), replace(kept, revoked=NOW - 1)):
        assert not access(other).is_valid(caller)
    assert not access().is_valid(caller)
    assert access().is_valid(access().caller(asking()))
