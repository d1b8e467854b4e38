"""JSON as RFC 8259 has it, and nothing beyond."""

from __future__ import annotations

import json

import pytest

from drumline.service.guarded import parse_strictly


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
