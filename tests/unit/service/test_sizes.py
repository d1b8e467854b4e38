"""Bodies that come slowly, and what comes after them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi import Request
from starlette.exceptions import HTTPException

from drumline.service import sizes
from drumline.service.sizes import limited

Receive = Callable[[], Awaitable[dict[str, Any]]]


def taken(receive: Receive, times: int) -> list[Any]:
    async def take() -> list[Any]:
        request = Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)
        wanted = limited(request, 1000)
        return [await wanted() for _ in range(times)]

    return asyncio.run(take())


def test_a_body_that_drips_ends_at_the_limit_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "WHOLE_S", 0.05)

    async def drip() -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"x", "more_body": True}

    with pytest.raises(HTTPException, match=r"more than 0\.05 s") as raised:
        taken(drip, 100)
    assert raised.value.status_code == 408


def test_silence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "SILENT_S", 0.01)

    async def nothing() -> dict[str, Any]:
        await asyncio.sleep(10)
        raise AssertionError

    with pytest.raises(HTTPException, match=r"nothing came for 0\.01 s"):
        taken(nothing, 1)


def test_once_it_is_whole_nothing_is_hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is held listens for its sender's end."""
    monkeypatch.setattr(sizes, "WHOLE_S", 0.02)
    monkeypatch.setattr(sizes, "SILENT_S", 0.02)
    messages = [{"type": "http.request", "body": b"{}"}]

    async def then_gone() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.sleep(0.06)
        return {"type": "http.disconnect"}

    assert [message["type"] for message in taken(then_gone, 2)] == ["http.request", "http.disconnect"]
