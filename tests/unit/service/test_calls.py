"""What the clients send, and how they read answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drumline.errors import ConfigError, Conflict, DrumlineError, NotFound, RemoteError, StoreError, Unauthorized
from drumline.jobs.requests import JobRequest
from drumline.service.calls import (
    change_call,
    checked_key,
    error_of,
    finetune_request,
    job_call,
    list_call,
    page_call,
    read,
    read_key,
    stream_call,
    submit_call,
    wait_before,
    waits,
)
from drumline.service.views import JobList

WHERE = "http://127.0.0.1:8000"


def told(code: str, **more: object) -> bytes:
    return json.dumps({"status": 409, "code": code, "detail": "what", "fix": "do", **more}).encode()


@pytest.mark.parametrize(
    ("code", "kind"),
    [("not_found", NotFound), ("conflict", Conflict), ("unauthorized", Unauthorized), ("store", StoreError)],
)
def test_an_answer_is_the_error_that_has_its_code(code: str, kind: type[DrumlineError]) -> None:
    error = error_of(409, told(code), WHERE)
    assert type(error) is kind and (error.problem, error.fix) == ("what", "do")


def test_an_unknown_code_is_kept() -> None:
    error = error_of(418, told("teapot"), WHERE)
    assert isinstance(error, RemoteError) and (error.code, error.status) == ("teapot", 418)


def test_where_values_are_wrong_is_told() -> None:
    fields = [{"field": "body.name", "problem": "too long"}, {"field": "body.x", "problem": "unknown"}]
    error = error_of(422, told("invalid", detail="body.name: too long", errors=fields), WHERE)
    assert error.problem == "body.name: too long\nbody.x: unknown"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"detail": "Not Found"}', b"\xff"])
def test_an_answer_of_something_else_says_so(body: bytes) -> None:
    error = error_of(404, body, WHERE)
    assert isinstance(error, RemoteError) and "not as a drumline service does" in error.problem


def test_an_answer_that_is_not_what_was_asked_for_says_so() -> None:
    with pytest.raises(RemoteError, match="no JobList"):
        read(JobList, b'{"items": 3}', WHERE)
    assert read(JobList, b'{"items": [], "next": null, "total": 0, "newer": 1}', WHERE).total == 0


def test_what_makes_a_job_carries_a_key_and_another_one_each_time() -> None:
    first, second = submit_call({}, None), submit_call({}, None)
    assert len(first.headers["Idempotency-Key"]) == 32 and first.headers != second.headers
    assert submit_call({}, "mine").headers == {"Idempotency-Key": "mine"}
    assert "Idempotency-Key" in change_call("job-1", "retry").headers


def test_a_typed_request_is_sent_without_what_it_does_not_say() -> None:
    request = JobRequest(model_name="gpt2", texts=["a"])
    assert submit_call(request, None).body == {"model_name": "gpt2", "texts": ["a"]}


def test_a_fine_tuning_is_rows_or_a_path() -> None:
    rows = finetune_request("gpt2", ["a", {"text": "b"}], {"epochs": 3}, {"name": "x"})
    assert JobRequest.model_validate(rows).texts == ["a", {"text": "b"}] and rows["name"] == "x"
    assert finetune_request("gpt2", Path("ads.jsonl"))["path"] == "ads.jsonl"


def test_filters_are_a_query() -> None:
    call = list_call({"state": ["queued", "running"], "owner": None, "q": "ads"}, cursor="c")
    assert list(call.query) == [
        ("limit", "200"), ("state", "queued"), ("state", "running"), ("q", "ads"), ("cursor", "c")
    ]  # fmt: skip


def test_a_stream_is_asked_for_by_its_type() -> None:
    assert stream_call("job-1", "logs", "rank_0").headers == {"Accept": "text/event-stream"}
    assert list(stream_call("job-1", "logs", tail=5).query) == [("tail", "5")]
    assert list(page_call("job-1", "metrics", "7:9").query) == [("after", "7:9"), ("limit", "200")]


def test_only_the_first_page_says_where_to_begin() -> None:
    first = [("source", "rank_1"), ("tail", "5"), ("limit", "200")]
    assert list(page_call("job-1", "logs", None, "rank_1", 5).query) == first
    later = [("source", "rank_1"), ("after", "7:9"), ("limit", "200")]
    assert list(page_call("job-1", "logs", "7:9", "rank_1", 5).query) == later


@pytest.mark.parametrize("job_id", ["", "a/b", "..", "../x", "a?b", "ü", "a\n", "x" * 101])
def test_what_leads_elsewhere_is_no_id(job_id: str) -> None:
    with pytest.raises(ConfigError, match="no id of a job"):
        job_call(job_id)


def test_waiting_grows_and_is_bounded() -> None:
    times = list(waits(12))
    assert len(times) == 11 and 0.1 <= times[0] <= 0.2 and max(times) <= 10.0 and list(waits(1)) == []
    assert wait_before(0.2, "3") == 3.0 and wait_before(0.2, None) == 0.2
    assert wait_before(0.2, "9999") == 60.0 and wait_before(0.2, "Wed, 21 Oct 2026 07:28:00 GMT") == 0.2


def test_a_key_is_read_from_its_file_and_never_told(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("dl_abc\n")
    assert read_key(file) == "dl_abc"
    file.write_text("dl_abc\ndl_secret\n")
    with pytest.raises(ConfigError) as caught:
        read_key(file)
    assert "secret" not in caught.value.problem
    with pytest.raises(ConfigError, match="no key can be read"):
        read_key(tmp_path / "none")
    with pytest.raises(ConfigError):
        checked_key("", "here")
