"""What the clients ask of a service, and how they read its answers: pure, without any network."""

from __future__ import annotations

import json
import random
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from drumline.errors import ConfigError, DrumlineError, MissingExtra, RemoteError

A = TypeVar("A", bound=BaseModel)
Stream = Literal["logs", "metrics", "events"]

AGAIN = frozenset({429, 502, 503, 504})
"""Answers after which a request is repeated."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 10.0
PAGE = 200
"""Entries of a list, or lines of a file, that are asked for at once; the service's most."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,100}\Z")


@dataclass(frozen=True)
class Call:
    """One request. Each may come twice and changes nothing more than once, where it does not say otherwise."""

    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = True
    """False: after a failure nobody knows whether it was done, and only its caller may ask again."""


def submit_call(request: Mapping[str, Any] | BaseModel, idempotency_key: str | None) -> Call:
    """Ask for a job. The key makes it repeatable: a request that comes twice under it gives one job."""
    body = request.model_dump(mode="json", exclude_unset=True) if isinstance(request, BaseModel) else dict(request)
    return Call("POST", "/jobs", body=body, headers={"Idempotency-Key": idempotency_key or secrets.token_hex(16)})


def finetune_request(
    model_name: str,
    dataset: Sequence[str | Mapping[str, Any]] | str | Path,
    settings: Mapping[str, Any] | None = None,
    job: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The body that asks for a fine-tuning. dataset: texts or rows to send, or a path that the service may read."""
    data = {"path": str(dataset)} if isinstance(dataset, str | Path) else {"texts": list(dataset)}
    return {"kind": "finetune", "model_name": model_name, **data, "settings": dict(settings or {}), **(job or {})}


def infer_request(
    model_name: str,
    rows: Sequence[str | Mapping[str, Any]] | str | Path,
    task: Mapping[str, Any] | None = None,
    job: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The body that asks for a prediction. rows: texts or rows to send, or a path that the service may read."""
    data = {"path": str(rows)} if isinstance(rows, str | Path) else {"texts": list(rows)}
    asked = {} if task is None else {"task": dict(task)}
    return {"kind": "infer", "model_name": model_name, **data, **asked, **(job or {})}


def list_call(filters: Mapping[str, Any], cursor: str | None = None) -> Call:
    """Ask for a page of jobs. A filter of None is left out; one with several values is given several times."""
    return Call("GET", "/jobs", query_of({"limit": PAGE, **filters, "cursor": cursor}))


def query_of(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A query: a value of None is left out; one with several is given several times."""
    query: list[tuple[str, str]] = []
    for name, value in values.items():
        each = [value] if isinstance(value, str | int) else value or ()
        query += [(name, str(one)) for one in each]
    return query


def job_call(job_id: str) -> Call:
    """Ask for one job."""
    return Call("GET", job_path(job_id))


def change_call(job_id: str, change: Literal["cancel", "retry"], body: Any = None) -> Call:
    """Ask for a change; `retry` makes a new job, and carries a key so that it makes one."""
    headers = {"Idempotency-Key": secrets.token_hex(16)} if change == "retry" else {}
    return Call("POST", f"{job_path(job_id)}/{change}", body=body, headers=headers)


def output_call(job_id: str) -> Call:
    """Ask for the answers of a job that has predicted."""
    return Call("GET", f"{job_path(job_id)}/output")


def delete_data_call(job_id: str) -> Call:
    """Ask that the texts of an ended job be removed."""
    return Call("DELETE", f"{job_path(job_id)}/data")


def stream_call(job_id: str, stream: Stream, source: str | None = None, tail: int | None = None) -> Call:
    """Ask for a stream that follows a file of a job; tail: from so many lines before its end on."""
    query = query_of({"source": source, "tail": tail})
    return Call("GET", f"{job_path(job_id)}/{stream}", query, headers={"Accept": "text/event-stream"})


def page_call(
    job_id: str, stream: Stream, after: str | None, source: str | None = None, tail: int | None = None
) -> Call:
    """Ask for a page of a file of a job. after: `next` of the page before; None: it is the first."""
    asked = {"source": source, "tail": tail if after is None else None, "after": after, "limit": PAGE}
    return Call("GET", f"{job_path(job_id)}/{stream}", query_of(asked))


def error_of(status: int, body: bytes, where: str) -> DrumlineError:
    """The error that an answer tells: the class with its code, or RemoteError. where: the service, for errors."""
    try:
        told = json.loads(body)
        code, problem, fix = str(told["code"]), str(told["detail"]), str(told.get("fix") or "")
    except (ValueError, KeyError, TypeError):
        problem = f"{where} answered with status {status}, and not as a drumline service does"
        return RemoteError(problem, "check the address: is it the service's own, with its prefix?", "answer", status)
    for found in told.get("errors") or ():
        if isinstance(found, Mapping) and f"{found.get('field')}: " not in problem:
            problem += f"\n{found.get('field')}: {found.get('problem')}"
    kind = _classes().get(code)
    return RemoteError(problem, fix or "see the service's log", code, status) if kind is None else kind(problem, fix)


def read(kind: type[A], body: bytes, where: str) -> A:
    """An answer as the record that it is. Raises RemoteError for one that is not."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        what = f"{where} answered what is no {kind.__name__}: {error.errors()[0]['msg']}"
        raise RemoteError(
            what, "is the service of another version? compare: drumline --version", "answer", 200
        ) from None


def waits(tries: int) -> Iterator[float]:
    """Seconds before each further try: growing, and scattered, so that many clients do not come back at once."""
    wait_s = FIRST_WAIT_S
    for _ in range(tries - 1):
        yield wait_s * random.uniform(0.5, 1.0)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


def wait_before(next_s: float, told: str | None) -> float:
    """Seconds before a further try: what Retry-After says where it says more, up to a limit."""
    try:
        return min(max(next_s, float(told or 0)), 60.0)
    except ValueError:  # a date
        return next_s


def read_key(file: Path) -> str:
    """A key from a file with nothing else in it. Raises ConfigError where there is none."""
    try:
        key = file.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: no key can be read from it ({error})", "make one: drumline tokens create") from None
    return checked_key(key, str(file))


def checked_key(key: str, where: str) -> str:
    """A key that can stand in a header. Raises ConfigError, without the key, for one that cannot."""
    if key.isascii() and key.isprintable() and key and not any(map(str.isspace, key)):
        return key
    raise ConfigError(f"{where} holds no API key: that is one word, as dl_...", "make one: drumline tokens create")


def job_path(job_id: str) -> str:
    """Where a job is. Raises ConfigError for what is no id."""
    return f"/jobs/{checked_id(job_id, 'a job', 'see them with: drumline jobs list')}"


def checked_id(value: str, of: str, fix: str) -> str:
    """An id that can stand in a path. Raises ConfigError for what is none: it could lead to another path."""
    if not _ID.match(value):
        raise ConfigError(f"{value[:100]!r} is no id of {of}", fix)
    return value


def _classes() -> dict[str, type[DrumlineError]]:
    """Every error by its code that takes a problem and a fix."""
    found: dict[str, type[DrumlineError]] = {}
    rest: list[type[DrumlineError]] = [DrumlineError]
    while rest:
        kind = rest.pop()
        if kind not in (MissingExtra, RemoteError):
            found.setdefault(kind.code, kind)
        rest += kind.__subclasses__()
    return found
