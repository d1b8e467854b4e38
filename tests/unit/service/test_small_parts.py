"""Moments, tags, histories, idempotency keys, rates, problems."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, TypeAdapter, ValidationError

from drumline.config.service import AccessConfig
from drumline.errors import ConfigError, NotFound, RateLimited
from drumline.jobs.requests import Who
from drumline.service.etags import PreconditionFailed, etag_of, matches, require_match
from drumline.service.history import spread, training_history
from drumline.service.idempotency import idempotency_of
from drumline.service.kept_json import KeptJson
from drumline.service.problems import MOST_FIELDS, STATUS_OF, answer_to, responses
from drumline.service.rates import Rates
from drumline.service.times import parse_time


def request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/x", "query_string": b"", "headers": raw})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01", 0.0),
        ("1970-01-01T01:00:00+01:00", 0.0),
        ("1970-01-01T01:00:00 01:00", 0.0),
        ("1970-01-01 00:00:01", 1.0),
    ],
)
def test_a_moment_is_read(text: str, seconds: float) -> None:
    assert parse_time("created_after", text) == seconds


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "9999-99-99T00:00:00Z", "nan"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="created_after"):
        parse_time("created_after", text)


def test_tags_are_compared() -> None:
    tag = etag_of(b"x")
    assert matches(tag, tag) and matches(f'"other", W/{tag}', tag) and matches("*", tag)
    assert not matches(None, tag) and not matches('"other"', tag)
    require_match(request(), tag)
    require_match(request(if_match=tag), tag)
    with pytest.raises(PreconditionFailed):
        require_match(request(if_match='"other"'), tag)


def test_a_long_history_is_spread_evenly_with_its_ends() -> None:
    records = [{"step": step} for step in range(5001)]
    found = [record["step"] for record in spread(records, 11)]
    assert found == [0, 500, 1000, 1500, 2000, 2500, 3000, 3500, 4000, 4500, 5000]
    assert len(spread(records[:11], 11)) == 11


def test_a_history_has_log_lines_and_evaluations_and_is_read_again_when_it_grew(tmp_path: Path) -> None:
    assert json.loads(training_history(tmp_path)) == []
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"kind": "train", "loss": NaN}\n{"kind": "gpu"}\n')
    first = training_history(tmp_path)
    assert json.loads(first) == [{"kind": "train", "loss": None}]
    assert training_history(tmp_path) is first
    metrics.write_text('{"kind": "train", "loss": 2}\n{"kind": "gpu"}\n{"kind": "eval", "loss": 1}\n')
    assert [record["loss"] for record in json.loads(training_history(tmp_path))] == [2, 1]


def test_json_is_kept_up_to_so_many_bytes_the_newest_last() -> None:
    kept, made = KeptJson(10), list[str]()

    def get(key: str, size: int = 4) -> bytes:
        return kept.get(key, lambda: made.append(key) or key.encode() * size)  # type: ignore[func-returns-value]

    assert (get("a"), get("b"), get("a")) == (b"aaaa", b"bbbb", b"aaaa")
    assert made == ["a", "b"]
    get("c")  # twelve bytes: what came first goes
    get("b")
    get("a")
    assert made == ["a", "b", "c", "a"]
    assert get("d", 11) == b"d" * 11  # too large to be kept, and nothing else is then
    get("d", 11)
    get("a")
    assert made == ["a", "b", "c", "a", "d", "d", "a"]


class Body(BaseModel):
    name: str = ""


def test_an_idempotency_key_goes_with_its_owner_operation_and_body() -> None:
    ann = Who("ann")
    assert idempotency_of(None, ann, "jobs", Body()) is None
    first = idempotency_of("k", ann, "jobs", Body(name="a"))
    assert first == idempotency_of("k", ann, "jobs", Body(name="a"))
    assert first is not None and (first.owner, first.key) == ("ann", "k")
    prints = {
        getattr(idempotency_of("k", ann, operation, body), "fingerprint", None)
        for operation in ("jobs", "retry")
        for body in (Body(name="a"), Body(name="b"), Body())
    }
    assert len(prints) == 6


def test_rates_are_counted_by_caller_and_kind() -> None:
    rates = Rates(AccessConfig(requests_per_minute=3, changes_per_minute=1))
    for _ in range(3):
        rates.count("ann", is_change=False)
    rates.count("ann", is_change=True)
    rates.count("bob", is_change=False)
    with pytest.raises(RateLimited) as found:
        rates.count("ann", is_change=False)
    with pytest.raises(RateLimited):
        rates.count("ann", is_change=True)
    assert 1 <= found.value.retry_after_s <= 61


def test_errors_become_problems_with_their_status() -> None:
    answer = answer_to(NotFound("there is no job", "look"), request())
    assert answer.status_code == 404 and answer.media_type == "application/problem+json"
    limited = answer_to(RateLimited("too many", "wait", 7.4), request())
    assert (limited.status_code, limited.headers["Retry-After"]) == (429, "7")


def test_an_unforeseen_error_tells_nothing_of_itself(caplog: pytest.LogCaptureFixture) -> None:
    answer = answer_to(RuntimeError("a path, a secret"), request())
    assert answer.status_code == 500 and b"secret" not in bytes(answer.body)
    assert "RuntimeError" in caplog.text


def test_a_path_stands_on_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    asked = request()
    asked.scope["path"] = "/jobs/a\r\nPOST /keys by root\x1b[2J\udc80" + "x" * 5000
    answer_to(RuntimeError("no"), asked)
    answer_to(KeyError("no"), asked)
    for record in caplog.records:
        told = record.getMessage()
        assert told.startswith("GET /jobs/a%0D%0APOST%20/keys%20by%20root%1B%5B2J") and len(told) < 400
        assert told.isprintable()
    assert len(caplog.records) == 2


@pytest.mark.parametrize("is_frameworks", [True, False])
def test_of_many_wrong_values_some_are_told(is_frameworks: bool) -> None:
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(list[int]).validate_python(["a secret"] * 1000)
    error = RequestValidationError(raised.value.errors()) if is_frameworks else raised.value
    answer = answer_to(error, request())
    assert answer.status_code == 422 and len(json.loads(bytes(answer.body))["errors"]) == MOST_FIELDS
    assert b"secret" not in bytes(answer.body)


def test_every_status_of_an_error_can_be_declared() -> None:
    assert set(responses(*set(STATUS_OF.values()))) == set(STATUS_OF.values())


def test_callers_who_do_not_come_back_are_forgotten_and_no_thread_looks_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = Rates(AccessConfig())
    threads = threading.active_count()
    for number in range(100):
        rates.count(f"10.0.0.{number}", is_change=False)
    assert rates.num_callers == 100 and threading.active_count() == threads
    later, monotonic = time.time() + 300, time.monotonic() + 300
    monkeypatch.setattr(time, "time", lambda: later)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic)
    rates.count("10.1.1.1", is_change=False)
    assert rates.num_callers == 1
