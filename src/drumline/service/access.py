"""Who asks: API keys, logins of the web page, and on loopback nobody in particular."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from drumline.config.service import ServiceConfig
from drumline.errors import ConfigError, Forbidden, Unauthorized
from drumline.jobs.requests import Who
from drumline.service.refusals import Kind, Refusals

if TYPE_CHECKING:
    from drumline.jobs.store import Key, KeyKind, Store

COOKIE = "drumline_session"
CHANGE_HEADER = "x-drumline"
"""A page of another site cannot make a browser send it, so a change by cookie that has it is the page's own."""

READING = frozenset({"GET", "HEAD", "OPTIONS"})
LOCAL = Who(owner="local", role="admin")
"""Whoever asks without a key on loopback: the machine's own user."""

KEPT_S = 0.25
"""How long a key that was found is taken for what it was, without asking the store: so long one opens at most that
another process has revoked meanwhile."""
MOST_KEPT = 1000

FIX = "send a key as `Authorization: Bearer dl_...`; `drumline tokens create` makes one"
_SECRET = re.compile(r"[\x21-\x7e]{8,200}")


@dataclass(frozen=True)
class Caller:
    """Who asks, and by what it is known."""

    who: Who
    by: Literal["key", "cookie", "loopback"]
    name: str
    """For limits and the log: the key's id, or an address. Never the secret."""
    session: str | None = None
    """Id of the login by which the page asks."""


@dataclass(frozen=True)
class Asking:
    """What of a request decides who asks. Names of headers are in small letters."""

    method: str
    headers: Mapping[str, str]
    cookies: Mapping[str, str]
    client: str | None
    """Address; None where there is no network between."""
    scheme: str = "http"

    @property
    def is_change(self) -> bool:
        """Whether it may change something."""
        return self.method not in READING


class Access:
    """Decides who asks. Raises Unauthorized and Forbidden."""

    def __init__(self, config: ServiceConfig, store: Store, clock: Callable[[], float]) -> None:
        """Raises ConfigError where keys are switched off and others than this machine can reach the service."""
        self._store = store
        self._clock = clock
        self._config = config.access
        self._hosts = {_without_port(host).lower() for host in (*config.access.allowed_hosts, config.host)}
        self._origins = {origin.rstrip("/").lower() for origin in config.access.allowed_origins}
        self._is_open = config.access.keys == "off" or (config.access.keys == "auto" and is_loopback(config.host))
        check_keys(config)
        self.refusals = Refusals(lambda *entry: store.log.audit(*entry), clock)
        self._kept: dict[str, tuple[Key, float]] = {}
        """By their hashes, keys and logins that were found, and when."""

    def caller(self, asking: Asking) -> Caller:
        """Who asks: by its key if there is one, by the page's cookie, or on loopback as the machine's own user."""
        secret = self.secret_of(asking)
        if secret is not None:
            try:
                return self._of_secret(secret, "key")
            except Unauthorized:
                self.note_refused(asking.client, "key_refused", secret)
                raise
        is_open = self._is_open and (self._config.keys == "off" or _is_direct(asking))
        cookie = asking.cookies.get(COOKIE)
        # A browser sends a login of yesterday too: where nobody needs one, it is as if there were none.
        if cookie and not (is_open and self._key_of(cookie, "session") is None):
            return self._of_cookie(cookie, asking)
        if not is_open:
            raise Unauthorized("an API key is needed", FIX)
        self._refuse_foreign(asking)
        return Caller(LOCAL, "loopback", asking.client or "local")

    @property
    def needs_key(self) -> bool:
        """Whether everybody needs one."""
        return not self._is_open

    @staticmethod
    def secret_of(asking: Asking) -> str | None:
        """The key that came with a request, if any. Raises Unauthorized for a header that holds none."""
        given = asking.headers.get("x-api-key")
        authorization = asking.headers.get("authorization")
        if given is None and authorization is not None:
            scheme, _, given = authorization.partition(" ")
            if scheme.lower() != "bearer":
                raise Unauthorized("the header Authorization holds no bearer key", FIX)
        return None if given is None else given.strip()

    def knows(self, asking: Asking) -> bool:
        """Whether `caller` has no need of the store, which takes time. Raises Unauthorized as it does."""
        secret = self.secret_of(asking) or asking.cookies.get(COOKIE)
        return not secret or self._kept_key(hash_of(secret), self._clock()) is not None

    def forget(self) -> None:
        """Look at every key anew from now on: one was revoked."""
        self._kept.clear()

    def is_valid(self, caller: Caller) -> bool:
        """Whether the key or login by which somebody came still opens anything. Raises StoreError."""
        key_id = caller.session or caller.who.key_id
        if caller.by == "loopback" or key_id is None:
            return True
        key = self._store.keys.get(key_id)
        return key is not None and key.is_valid(self._clock())

    def note_refused(self, address: str | None, event: Kind, secret: str) -> None:
        """Have the audit log say that a key opened nothing: which one, if there was such a key. Raises StoreError."""
        known = known_key(self._store, secret)
        if known is None or known.kind != "key":
            what = "an unknown key"
        else:
            what = f"{known.id} of {known.owner}, {'past its end' if known.revoked is None else 'revoked'}"
        self.refusals.count(address, event, what)

    def _of_cookie(self, cookie: str, asking: Asking) -> Caller:
        caller = self._of_secret(cookie, "cookie")
        if asking.is_change:
            self._refuse_foreign(asking)
            if CHANGE_HEADER not in asking.headers:
                raise Forbidden("a change by cookie lacks the header X-Drumline", "send `X-Drumline: 1`")
        return caller

    def _key_of(self, secret: str, kind: KeyKind) -> Key | None:
        now, hashed = self._clock(), hash_of(secret)
        key = self._kept_key(hashed, now)
        if key is None:
            key = find_key(self._store, secret, kind, now)
            if key is None:
                return None
            self._store.keys.touch(key, now)
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[hashed] = key, now
        return key if key.kind == kind else None

    def _kept_key(self, hashed: str, now: float) -> Key | None:
        key, found = self._kept.get(hashed, (None, 0.0))
        return key if key is not None and 0 <= now - found < KEPT_S and key.is_valid(now) else None

    def _of_secret(self, secret: str, by: Literal["key", "cookie"]) -> Caller:
        key = self._key_of(secret, "session" if by == "cookie" else "key")
        if key is None:
            what = "the login has ended" if by == "cookie" else "the API key is unknown, revoked or past its end"
            raise Unauthorized(what, "log in again" if by == "cookie" else FIX)
        who = Who(key.owner, key.role, key.parent or key.id)
        return Caller(who, by, key.parent or key.id, key.id if by == "cookie" else None)

    def _refuse_foreign(self, asking: Asking) -> None:
        """Of requests that a browser may have made for a page of somebody else's: by name tricks, or across sites."""
        host = asking.headers.get("host", "")
        if "*" not in self._hosts and _without_port(host).lower() not in self._hosts:
            raise Forbidden(
                f"the service does not answer as {host[:100]!r} without a key",
                "ask under localhost, or add the name to access.allowed_hosts",
            )
        if not asking.is_change:
            return
        origin = asking.headers.get("origin")
        is_own = origin is None or origin.lower() in self._origins or _place_of(origin) == host.lower()
        if not is_own or (origin is None and asking.headers.get("sec-fetch-site") == "cross-site"):
            raise Forbidden("a page of another site may not change anything", "add it to access.allowed_origins")


def find_key(store: Store, secret: str, kind: KeyKind, now: float) -> Key | None:
    """The living key or session of a secret, or None."""
    key = known_key(store, secret)
    return key if key is not None and key.kind == kind and key.is_valid(now) else None


def known_key(store: Store, secret: str) -> Key | None:
    """The key or session of a secret, whether it opens anything or not; None: there is none."""
    return store.keys.find_by_hash(hash_of(secret)) if _SECRET.fullmatch(secret) else None


def hash_of(secret: str) -> str:
    """What is kept of a secret. It has 256 random bits, so that a plain hash cannot be guessed back."""
    return hashlib.sha256(secret.encode()).hexdigest()


def check_keys(config: ServiceConfig) -> None:
    """Raise ConfigError where keys are off and not only this machine can reach the service."""
    if config.access.keys == "off" and not is_loopback(config.host):
        raise ConfigError(
            f"access.keys is off, and {config.host} can be reached from elsewhere",
            "leave access.keys at auto, or bind to 127.0.0.1",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address or name."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _is_direct(asking: Asking) -> bool:
    """Whether it comes from this machine itself, not through a proxy: behind one, everybody has its address."""
    if "x-forwarded-for" in asking.headers or "forwarded" in asking.headers:
        return False
    if asking.client is None:
        return True
    try:
        address = ipaddress.ip_address(asking.client)
    except ValueError:
        return True  # no network between: a test's client, a Unix socket
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _place_of(origin: str) -> str | None:
    """Name and port of an origin; None for one that has none, which is nobody's own."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0] if host.count(":") == 1 else host
