"""A server on this machine that speaks as much of the hub's API as fetching a repository takes."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = hashlib.sha1(b"drumline").hexdigest()


@dataclass
class Repository:
    """A folder under a name on the hub, with the branches main and other."""

    folder: Path
    token: str | None = None
    """Without it the repository is not to be seen."""
    gated: bool = False
    """Its files are refused to all."""


@dataclass
class FakeHub:
    """What it serves, and what was asked of it."""

    repositories: Mapping[str, Repository]
    url: str = ""
    main: str = COMMIT
    """Where the branch is."""
    sent: list[str] = field(default_factory=list)
    """Names of the files that were sent whole, one for each time."""
    requests: int = 0

    def commit_of(self, revision: str) -> str | None:
        """The commit of a branch or commit; None where there is no such revision."""
        known = {"main": self.main, "other": COMMIT[::-1], COMMIT: COMMIT, COMMIT[::-1]: COMMIT[::-1]}
        return known.get(revision)


class Handler(BaseHTTPRequestHandler):
    """One request; `hub` is set by `serving`."""

    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Whole answers."""
        self._answer(whole=True)

    def do_HEAD(self) -> None:
        """Headers alone."""
        self._answer(whole=False)

    def _answer(self, *, whole: bool) -> None:
        self.hub.requests += 1
        parts = self.path.partition("?")[0].strip("/").split("/")
        of_api = parts[:2] == ["api", "models"]
        name, rest = "/".join(parts[2:4] if of_api else parts[:2]), (parts[4:] if of_api else parts[2:])
        found = self.hub.repositories.get(name)
        if found is None or (found.token and self.headers.get("authorization") != f"Bearer {found.token}"):
            return self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        commit = self.hub.commit_of(rest[1] if len(rest) > 1 else "main")
        if commit is None:
            return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        files = {file.relative_to(found.folder).as_posix(): file for file in found.folder.rglob("*") if file.is_file()}
        if rest[:1] == ["resolve"]:
            return self._file(found, commit, "/".join(rest[2:]), files, whole=whole)
        if rest[:1] == ["tree"]:
            return self._json(
                [
                    {"type": "file", "path": path, "size": file.stat().st_size, "oid": etag(file)}
                    for path, file in sorted(files.items())
                ]
            )
        return self._json({"id": name, "sha": commit, "siblings": [{"rfilename": path} for path in sorted(files)]})

    def _file(self, found: Repository, commit: str, path: str, files: Mapping[str, Path], *, whole: bool) -> None:
        if found.gated:
            return self._send(403, b"", {"X-Error-Code": "GatedRepo"})
        if path not in files:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        content = files[path].read_bytes()
        if whole:
            self.hub.sent.append(path)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag(files[path])}"'}
        return self._send(200, content, headers, whole=whole)

    def _json(self, content: Any) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: Mapping[str, str], *, whole: bool = True) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if whole and self.command != "HEAD":
            self.wfile.write(content)


def etag(file: Path) -> str:
    """Of its content."""
    return hashlib.sha1(file.read_bytes()).hexdigest()


@contextmanager
def serving(repositories: Mapping[str, Repository]) -> Iterator[FakeHub]:
    """Inside, the hub is at `url`."""
    hub = FakeHub(repositories)
    handler = type("Bound", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
