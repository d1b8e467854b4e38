"""Serves a collector over HTTP, for a Prometheus that scrapes it."""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from drumline.errors import ConfigError, ServeError
from drumline.monitor.prometheus import Collector, expose

logger = logging.getLogger("drumline")

DEFAULT_PORT = 9745
CLIENT_LIMIT_S = 10.0
"""How long a client may take to say what it wants."""
MOST_CLIENTS = 32
"""At a time; each holds a thread."""


class Exporter:
    """A running server of metrics at /metrics; close() it, or use `with`."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="drumline-exporter", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens at, also where 0 was asked for."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host = str(self._server.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop listening and give the port back; closing twice is allowed."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(collector: Collector, host: str = "127.0.0.1", port: int = DEFAULT_PORT) -> Exporter:
    """Serve on threads of its own until it is closed; port 0 takes a free one.

    Nobody is asked for a password: listen at other addresses than this machine's own only where everybody who reaches
    them may know what runs here. Raises ServeError where nothing can listen there.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return Exporter(_Server(collector, family, address))
    except (OSError, UnicodeError) as error:  # the latter for a name that cannot be one
        raise ServeError(
            f"nothing can be served at {host}:{port}: {getattr(error, 'strerror', None) or error}",
            "name another address, or see with `ss -ltnp` who has this one",
        ) from error


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `:PORT`, `PORT`, `HOST` or `[IPv6]:PORT`; without them, 127.0.0.1 and DEFAULT_PORT.

    Raises ConfigError for anything else.
    """
    try:
        parts = urlsplit(f"//{':' + text if text.isdecimal() else text}")
        port = DEFAULT_PORT if parts.port is None else parts.port
    except ValueError:
        port = -1
    if port < 0 or text != text.strip() or parts.path or parts.query or parts.fragment or parts.username:
        raise ConfigError(f"{text!r} is no address", "write HOST:PORT, for example 127.0.0.1:9745")
    return parts.hostname or "127.0.0.1", port


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, collector: Collector, family: int, address: Any) -> None:
        self.collector = collector
        self.address_family = family
        self._free = threading.BoundedSemaphore(MOST_CLIENTS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without asking for the host's full name, as the base class does: where names are slow, that takes long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Turn a client away where too many are there already."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()  # no thread was started that would
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Give the client's place back at its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Into the log: the base class prints."""
        logger.warning("a scrape by %s failed", client_address[0], exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = CLIENT_LIMIT_S
    server_version, sys_version = "drumline", ""

    def do_GET(self) -> None:
        """The metrics, or a line that says where they are."""
        status, content_type = 200, "text/plain; charset=utf-8"
        path = urlsplit(self.path).path
        if path == "/metrics":
            body, content_type = expose(self.server.collector, self.headers.get("Accept", ""))
        elif path == "/":
            body = b"drumline's metrics of this machine are at /metrics\n"
        else:
            status, body = 404, b"not found; the metrics are at /metrics\n"
        try:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            logger.debug("%s hung up before it had the metrics", self.client_address[0])

    def log_message(self, format: str, *args: Any) -> None:
        """Only where somebody looks for it: there is a scrape every few seconds."""
        logger.debug("%s %s", self.client_address[0], format % args)
