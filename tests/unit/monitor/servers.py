"""A web server and a mail server in this process that take alerts, refuse them, or say nothing."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Inbox:
    """What a server got, and how it answers."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.refuses = 0
        """How many of the next alerts it refuses."""
        self.silent = threading.Event()
        """Set by a test that is done; while `hangs`, requests wait for it."""
        self.hangs = False
        self.arrived = threading.Condition()
        self.attempts = 0

    def take(self, what: Any) -> bool:
        """Whether it is accepted."""
        with self.arrived:
            self.attempts += 1
            accepted = self.refuses <= 0
            self.refuses -= 1
            if accepted:
                self.got.append(what)
            self.arrived.notify_all()
        if self.hangs:
            self.silent.wait(10)
        return accepted

    def wait_for(self, attempts: int) -> None:
        """Until so many have come, or fail."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: self.attempts >= attempts, 10)


@contextmanager
def web_server() -> Iterator[tuple[str, Inbox]]:
    """The URL of a server that takes JSON by POST, and what it got."""
    inbox = Inbox()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            accepted = inbox.take((self.headers["Content-Type"], body))
            self.send_response(204 if accepted else 503)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with _served(HTTPServer(("127.0.0.1", 0), Handler), inbox) as port:
        yield f"http://127.0.0.1:{port}/hook/secret", inbox


@contextmanager
def mail_server() -> Iterator[tuple[int, Inbox]]:
    """The port of an SMTP server (RFC 5321, without encryption) that takes messages, and what it got."""
    inbox = Inbox()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.say("220 ready")
            envelope: list[str] = []
            for raw in self.rfile:
                word, _, rest = raw.decode().strip().partition(" ")
                if word.upper() == "DATA":
                    self.say("354 go on")
                    lines = iter(lambda: self.rfile.readline().decode().rstrip("\r\n"), ".")
                    self.say("250 taken" if inbox.take((envelope, "\n".join(lines))) else "451 later")
                elif word.upper() == "QUIT":
                    self.say("221 bye")
                    return
                elif word.upper() == "AUTH":
                    envelope.append(f"AUTH {rest}")
                    self.say("235 welcome")
                elif word.upper() == "EHLO":
                    self.say("250-here\r\n250 AUTH PLAIN")
                else:
                    envelope.append(f"{word} {rest}")
                    self.say("250 fine")

        def say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

    with _served(socketserver.TCPServer(("127.0.0.1", 0), Handler), inbox) as port:
        yield port, inbox


@contextmanager
def _served(server: socketserver.TCPServer, inbox: Inbox) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        inbox.silent.set()
        server.shutdown()
        server.server_close()
        thread.join()
