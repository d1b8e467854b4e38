"""Where a service is and who asks, and what the two clients make of answers and silence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from drumline.errors import ConfigError, MissingExtra, RemoteError, ServiceUnreachable
from drumline.service.calls import Call, checked_key, error_of, read_key
from drumline.service.event_stream import Event, EventReader
from drumline.service.views import JobDetail

try:
    import httpx
except ImportError as error:
    raise MissingExtra("httpx", "serve") from error

__all__ = [
    "ADDRESS",
    "FIRST_LOOK_S",
    "LONGEST_LOOK_S",
    "Address",
    "OnProgress",
    "Texts",
    "httpx",
    "line_of",
    "not_ended",
    "stream_settings",
]

Texts = Sequence[str | Mapping[str, Any]]
OnProgress = Callable[[JobDetail], None]

ADDRESS = "http://127.0.0.1:8000"
SILENCE_S = 60.0
"""Without even a sign of life for so long, a stream is broken."""
FIRST_LOOK_S, LONGEST_LOOK_S = 0.1, 2.0
"""Between two looks at a job that is waited for."""


class Address:
    """Where a service is, who asks, and how a request becomes one of httpx's."""

    def __init__(self, url: str, key: str | None, key_file: str | Path | None, timeout_s: float) -> None:
        self.url = url.rstrip("/")
        if key_file is not None:
            key = read_key(Path(key_file))
        elif key is not None:
            key = checked_key(key, "key")
        try:
            host = httpx.URL(self.url).host
        except httpx.InvalidURL as error:
            raise ServiceUnreachable(f"{url!r} is no address: {error}", f"write it as {ADDRESS}") from None
        if not self.url.startswith(("http://", "https://")) or not host:
            raise ServiceUnreachable(f"{url!r} is no address", f"write it as {ADDRESS}")
        if "@" in self.url:  # it would stand in errors and logs
            raise ConfigError(
                "the address holds a user or password", "leave it out; a service takes a key: key_file=..."
            )
        self.settings: dict[str, Any] = {
            "base_url": self.url,
            "headers": {} if key is None else {"Authorization": f"Bearer {key}"},
            "timeout": timeout_s,
            # What is on this machine is reached without the proxy that leads out of it.
            "trust_env": host not in ("localhost", "127.0.0.1", "::1"),
        }

    def failure(self, error: Exception) -> ServiceUnreachable:
        """What is said where no answer comes."""
        what = str(error) or type(error).__name__
        return ServiceUnreachable(f"no answer from {self.url}: {what}", "is it running there? start it: drumline serve")

    def broken(self, error: Exception) -> RemoteError:
        """What is said of a stream that is none."""
        return RemoteError(f"{self.url} sends what is no stream of events: {error}", "check the address", "answer", 200)

    def told(self, response: httpx.Response) -> Exception:
        """The error that an answer tells."""
        return error_of(response.status_code, response.content, self.url)


def stream_settings(call: Call, reader: EventReader) -> dict[str, Any]:
    """How httpx is to ask for a stream, on from where the last one broke."""
    resume = {} if reader.last_id is None else {"Last-Event-ID": reader.last_id}
    return {
        "params": list(call.query),
        "headers": {**call.headers, **resume},
        "timeout": httpx.Timeout(10.0, read=SILENCE_S),
    }


def line_of(event: Event) -> str:
    """The line that an event of a log holds."""
    return str(event.data)


def not_ended(job: JobDetail, timeout_s: float | None) -> RemoteError:
    """What is raised where a job has not ended in the time that somebody waited."""
    return RemoteError(
        f"{job.id} is {job.state} after {timeout_s:g} s", "wait for longer, or look later", "timeout", 200
    )
