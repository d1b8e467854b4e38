"""The client on a bad network: repeats what fails, resumes what breaks, and says so when it gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from drumline.errors import ConfigError, NotFound, RateLimited, RemoteError, ServiceUnreachable
from drumline.jobs.records import Job, Resources, Work
from drumline.service import calls
from drumline.service.client import AsyncClient, Client
from drumline.service.views import job_view

Answer = httpx.Response | Exception
LIST: dict[str, Any] = {"items": [], "next": None, "total": 0}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other at once."""
    monkeypatch.setattr(calls, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(calls, "LONGEST_WAIT_S", 0.001)


class Network(httpx.MockTransport):
    """Answers in this order, and what was asked; an exception is a connection that fails."""

    def __init__(self, answers: Iterable[Answer]) -> None:
        super().__init__(self._answer)
        self.asked: list[httpx.Request] = []
        self._answers = iter(answers)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def problem(status: int, code: str, **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"code": code, "detail": "what", "fix": "do"}, headers=headers)


def broken(*chunks: bytes) -> Any:
    """A body that breaks off after these chunks."""

    class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield from chunks
            raise httpx.ReadError("connection reset")

        async def __aiter__(self) -> Any:
            for chunk in self:
                yield chunk

    return httpx.Response(200, stream=Body())


def test_what_fails_is_asked_again_with_the_same_key() -> None:
    job = Job("job-1", "ann", Work("train", {}), Resources(devices=1), 0.0)
    made = httpx.Response(202, json={**job_view(job, "").model_dump(), "of_a_newer_service": True})
    network = Network([httpx.ConnectError("refused"), problem(503, "store"), httpx.ReadTimeout("late"), made])
    with Client(transport=network) as client:
        assert client.submit({"kind": "train"}).id == "job-1"
    keys = {request.headers["Idempotency-Key"] for request in network.asked}
    assert len(network.asked) == 4 and len(keys) == 1


def test_a_check_of_a_training_is_asked_again_with_the_same_key() -> None:
    told = {"config_id": "plan-1", "method": "auto", "settings": {}, "notes": [], "links": {"start": "/"}}
    network = Network([problem(503, "store"), httpx.ReadTimeout("late"), httpx.Response(200, json=told)])
    with Client(transport=network) as client:
        assert client.multigpu.training_config({}).config_id == "plan-1"
    assert len(network.asked) == 3 and len({request.headers["Idempotency-Key"] for request in network.asked}) == 1


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([httpx.ReadTimeout("late")] * 2, ServiceUnreachable),
        ([problem(503, "later"), problem(503, "later")], RemoteError),
    ],
)
def test_a_change_of_the_defaults_is_asked_for_once(answers: list[Answer], error: type[Exception]) -> None:
    async def change() -> None:
        async with AsyncClient(transport=network) as client:
            await client.multigpu.set_config(batch_size_per_gpu=2)

    network = Network(answers)
    with Client(transport=network) as client, pytest.raises(error):
        client.multigpu.set_config(batch_size_per_gpu=2)
    with pytest.raises(error):
        asyncio.run(change())
    assert len(network.asked) == 2


@pytest.mark.parametrize(
    ("answers", "error", "asked"),
    [
        ([httpx.ConnectError("refused")] * 3, ServiceUnreachable, 3),
        ([problem(429, "rate")] * 3, RateLimited, 3),
        ([problem(500, "internal")], RemoteError, 1),
        ([httpx.Response(404, text="<html>")], RemoteError, 1),
        ([httpx.Response(200, text="hello")], RemoteError, 1),
        ([httpx.Response(302, headers={"Location": "http://elsewhere/"})], RemoteError, 1),
    ],
)
def test_it_gives_up(answers: list[Answer], error: type[Exception], asked: int) -> None:
    network = Network(answers)
    with Client("http://gpu-box:8000", "dl_key", tries=3, transport=network) as client, pytest.raises(error) as caught:
        list(client.list())
    assert len(network.asked) == asked and "dl_key" not in str(caught.value)


def test_a_stream_goes_on_where_it_broke_each_line_once() -> None:
    network = Network(
        [
            broken(b'event: line\ndata: "one"\nid: 4:7\n\nevent: line\ndata: "tw'),
            httpx.ConnectError("refused"),
            problem(503, "busy"),
            httpx.Response(200, content=b'event: line\ndata: "two"\nid: 8:7\n\n'),
            httpx.Response(200, content=b'event: rewritten\ndata: {}\nid: 0\n\nevent: line\ndata: "new"\nid: 4:9\n\n'),
            httpx.Response(200, content=b"event: end\ndata: {}\nid: 4:9\n\n"),
        ]
    )
    with Client(transport=network) as client:
        assert list(client.logs("job-1", follow=True)) == ["one", "two", "new"]
    places = [request.headers.get("Last-Event-ID") for request in network.asked]
    assert places == [None, "4:7", "4:7", "4:7", "8:7", "4:9"]


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([problem(404, "not_found")], NotFound),
        ([httpx.ConnectError("refused")] * 2, ServiceUnreachable),
        ([httpx.Response(200, content=b"data: <html>\n\n")], RemoteError),
        ([httpx.Response(200, content=b"")] * 2, RemoteError),
    ],
)
def test_a_stream_that_never_comes_is_an_error(answers: list[Answer], error: type[Exception]) -> None:
    with Client(tries=2, transport=Network(answers)) as client, pytest.raises(error):
        list(client.metrics("job-1", follow=True))


def test_the_one_that_awaits_is_as_patient() -> None:
    network = Network(
        [
            httpx.ConnectError("refused"),
            httpx.Response(200, json=LIST),
            broken(b'event: line\ndata: "one"\nid: 4:7\n\n'),
            httpx.Response(200, content=b'event: line\ndata: "two"\nid: 8:7\n\nevent: end\ndata: {}\n\n'),
            problem(429, "rate"),
            problem(429, "rate"),
        ]
    )

    async def use() -> None:
        async with AsyncClient(tries=2, transport=network) as client:
            assert [job async for job in client.list()] == []
            assert [line async for line in client.logs("job-1", follow=True)] == ["one", "two"]
            with pytest.raises(RateLimited):
                await client.get("job-1")

    asyncio.run(use())
    assert network.asked[3].headers["Last-Event-ID"] == "4:7"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Client("localhost:8000"),
        lambda: Client("ftp://localhost"),
        lambda: Client("http://[::1"),
        lambda: AsyncClient("http://"),
    ],
)
def test_what_is_no_address_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ServiceUnreachable, match="no address"):
        make()


def test_a_key_that_is_none_is_refused_without_being_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Client(key="secret with blanks")
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="holds a user or password") as caught:
        Client("http://ann:secret@gpu-box:8000")
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="no key can be read"):
        Client(key_file=tmp_path / "none")
