"""JSON as RFC 8259 has it, and nothing beyond."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from drumline.service import guarded
from drumline.service.guarded import MOST_NAMES, SMALL_BYTES, StrictRequest, parse_strictly


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": NaN}',
        b"[-Infinity]",
        b"1e999",
        b"9" * 5000,
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'"\xff\xfe"',
        b'"\\ud800"',
        b'{"\\udfff": 1}',
        b"{",
        b"",
        b"\xef\xbb\xbf{}",
    ],
    ids=lambda body: body[:12].decode("latin-1"),
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(json.JSONDecodeError):
        parse_strictly(body)


def test_what_is_json_is_taken() -> None:
    assert parse_strictly('{"a": [1, 2.5e10, "\\ud83d\\ude00é", null, true]}'.encode()) == {
        "a": [1, 2.5e10, "\U0001f600é", None, True]
    }


NAMES = json.dumps({f"name {number}": 1 for number in range(MOST_NAMES + 1)})


@pytest.mark.parametrize("body", [NAMES, f'{{"config": [{NAMES}]}}', f'{{"texts": {NAMES}}}'])
def test_what_is_so_large_that_nobody_means_it_is_refused(body: str) -> None:
    with pytest.raises(json.JSONDecodeError, match="and may have"):
        parse_strictly(body.encode())


TEXT = '[,{,[ \\" \\\\ \\u00e9' * 7  # each of which would be a part, if it did not stand in a text


@pytest.mark.parametrize(("body", "parts"), [("[1, 2, 3, 4]", 4), ("[[], []]", 4), ('{"a": {"b": [1]}}', 3)])
@pytest.mark.parametrize("text", ["", *(TEXT[:length] for length in range(118, 126))])
@pytest.mark.parametrize("piece", [1, 3, 64])
def test_a_body_of_too_many_parts_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch, body: str, parts: int, text: str, piece: int
) -> None:
    monkeypatch.setattr(guarded, "PIECE_BYTES", piece)
    whole = f"[{json.dumps(text)}, {json.dumps(text[::-1])}, {body}]".encode()
    assert parse_strictly(whole, most_parts=parts + 3) == json.loads(whole)

    def parsed(*given: Any, **options: Any) -> Any:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(json, "loads", parsed)
    with pytest.raises(json.JSONDecodeError, match="as many as a body may have"):
        parse_strictly(whole, most_parts=parts + 2)


def test_rows_may_have_many_names() -> None:
    assert len(parse_strictly(f'{{"dataset_config": {{"texts": [{NAMES}]}}}}'.encode())) == 1


@pytest.mark.parametrize(("size", "is_aside"), [(10, False), (SMALL_BYTES + 1, True)])
def test_a_large_body_is_parsed_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, size: int, is_aside: bool
) -> None:
    threads = []

    def parsed(*given: Any) -> Any:
        threads.append(threading.get_ident())
        return parse_strictly(*given)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps("x" * (size - 2)).encode()}

    monkeypatch.setattr(guarded, "parse_strictly", parsed)
    request = StrictRequest({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)
    assert len(asyncio.run(request.json())) == size - 2
    assert (threads[0] != threading.get_ident()) == is_aside
