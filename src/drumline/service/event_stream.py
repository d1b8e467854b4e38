"""Reads server-sent events: pure, and the same for the client that waits and the one that awaits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

END = "end"
"""Name of the last event of a stream: everything has been sent."""
REWRITTEN = "rewritten"
"""Name of the event that says: what follows is from the file's beginning, which is another one now."""


@dataclass(frozen=True)
class Event:
    """One event: its name, its data as JSON has it, and the id after which a stream goes on."""

    name: str
    data: Any
    id: str | None = None


@dataclass
class EventReader:
    """Puts bytes together to events, as the HTML standard's section on server-sent events says."""

    last_id: str | None = None
    """Of the last whole event; where a broken stream is to go on."""
    _rest: bytes = b""
    _fields: dict[str, list[str]] = field(default_factory=dict)

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Take what has come, and yield the events that it completes. Raises ValueError for what is no JSON in UTF-8.

        last_id is that of the event which was yielded last: who stops in between has seen no more.
        """
        # By hand: a text's splitlines() would also cut at the separators that JSON may hold inside a string.
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            event = self._read(line.removesuffix(b"\r").decode("utf-8"))
            if event is not None:
                self.last_id = self.last_id if event.id is None else event.id
                yield event

    def begin(self) -> None:
        """Forget an unfinished event: a new connection sends it again."""
        self._rest, self._fields = b"", {}

    def _read(self, line: str) -> Event | None:
        if line:
            name, _, value = line.partition(":")
            if name:  # a line that begins with a colon is a sign of life
                self._fields.setdefault(name, []).append(value.removeprefix(" "))
            return None
        found, self._fields = self._fields, {}
        if not found.get("data") and not found.get("event"):
            return None
        data = "\n".join(found.get("data", []))
        return Event(
            found.get("event", ["message"])[-1], json.loads(data) if data else None, found.get("id", [None])[-1]
        )
