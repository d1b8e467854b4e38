"""Serves the application until it is asked to end: the one file that knows uvicorn."""

from __future__ import annotations

import gc
import importlib
import logging
import resource
import socket
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from drumline.config.service import ServiceConfig
from drumline.errors import MissingExtra, ServeError
from drumline.jobs.records import ACTIVE_STATES
from drumline.service.access import check_keys

if TYPE_CHECKING:
    from drumline.service.state import Service

logger = logging.getLogger("drumline.service")

KEEP_ALIVE_S = 15
"""How long a connection stays open without a request."""
GRACE_S = 10
"""How long requests that go on at the end may take; streams end at once, jobs are none of them."""
HEADERS_BYTES = 32 * 1024
"""Of one request, with its address."""
BACKLOG = 512
OTHER_CONNECTIONS = 1000
"""At once, besides streams."""
FILES = 16_384
"""Open files that are asked of the system where it has set fewer: each connection is one."""


def serve(config: ServiceConfig, tell: Callable[[str], None] = logger.info) -> int:
    """Answer requests until SIGINT or SIGTERM; returns how many jobs run then, which go on. A second signal hurries.

    tell: called with the address once it is listened on. Raises ServeError where nothing can listen there, ConfigError,
    StoreError and MissingExtra.
    """
    check_keys(config)
    uvicorn = _import("uvicorn")
    from drumline.service.app import create_app
    from drumline.service.opening import open_service

    _allow_files()
    with listening(config.host, config.port) as listener:
        config = config.model_copy(update={"port": listener.getsockname()[1]})
        service = open_service(config)
        try:
            app = create_app(service.config, opener=lambda _: service)
            gc.collect()
            gc.freeze()  # what is there now stays: each collection would look through all of it, for many milliseconds
            server = _server_class(uvicorn)(uvicorn.Config(app, **settings(config)), service, tell)
            server.run(sockets=[listener])
            counts = service.store.jobs.counts()
        finally:
            service.close()
            service.store.close()  # it was asked once more, how many jobs run
    if not server.started:
        raise ServeError("the service could not start", "its log says why")
    return sum(counts.get(state, 0) for state in ACTIVE_STATES)


def settings(config: ServiceConfig) -> dict[str, Any]:
    """How uvicorn is set up."""
    return {
        "log_config": None,
        "access_log": False,  # paths hold ids of jobs; changes are logged with who made them
        "server_header": False,
        "lifespan": "on",
        "backlog": BACKLOG,
        "timeout_keep_alive": KEEP_ALIVE_S,
        "timeout_graceful_shutdown": GRACE_S,
        "limit_concurrency": config.limits.max_streams + OTHER_CONNECTIONS,
        "http": _protocol_class(),
        "ws": "none",
    }


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one. Raises ServeError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:  # the latter for a name that cannot be one
        raise ServeError(
            f"nothing can be served at {host}:{port}: {getattr(error, 'strerror', None) or error}",
            "name another with --set port=..., or see with `ss -ltnp` who has this one",
        ) from error
    # Each connection inherits it. asyncio sets it for sockets of protocol TCP only, and this one's is 0: the second
    # half of an answer would wait 40 ms for the first one's acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address_of(config: ServiceConfig) -> str:
    """Where the page of a service is, for people of this machine."""
    host = {"0.0.0.0": "localhost", "::": "localhost"}.get(config.host.strip("[]"), config.host.strip("[]"))
    return f"http://{f'[{host}]' if ':' in host else host}:{config.port}{config.prefix}/"


def _server_class(uvicorn: Any) -> Any:
    base: Any = uvicorn.Server

    class Server(base):  # type: ignore[misc]
        """Ends streams when it is asked to end, and returns then, instead of sending itself the signal again."""

        should_exit: bool

        def __init__(self, config: Any, service: Service, tell: Callable[[str], None]) -> None:
            super().__init__(config)
            self._service, self._tell = service, tell

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            """Say where it is, once it is there."""
            await super().startup(sockets)
            if self.started:
                self._tell(address_of(self._service.config))

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """At the first signal end what is open in order, at the second at once."""
            self.force_exit = self.should_exit
            self.should_exit = True
            self._service.end_streams()

    return Server


def _protocol_class() -> Any:
    base: Any = _import("uvicorn.protocols.http.httptools_impl").HttpToolsProtocol

    class Protocol(base):  # type: ignore[misc]
        """Parsed in C, which takes a tenth less time for a request than h11 does; the end of headers is ours."""

        transport: Any
        headers: list[tuple[bytes, bytes]]
        url: bytes
        _pending = 0
        """Bytes of which nothing has come yet: a head or trailers that go on and on."""

        def data_received(self, data: bytes) -> None:
            self._pending += len(data)
            super().data_received(data)
            if self._pending > HEADERS_BYTES and not self.transport.is_closing():
                self.send_400_response("Headers are too long.")

        def on_headers_complete(self) -> None:
            self._pending = 0
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > HEADERS_BYTES:
                raise ValueError("headers are too long")  # answered by the parser's caller
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._pending = 0
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._pending = 0
            super().on_message_complete()

    return Protocol


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(error.name or name, "serve") from None


def _allow_files() -> None:
    """As many open files as the system lets us have; it has hard limits that stay."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
