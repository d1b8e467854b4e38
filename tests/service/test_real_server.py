"""A real server in a process of its own: streams that are complete, clients that vanish, ends that are in order."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from drumline.config.service import ServiceConfig
from drumline.errors import ServeError
from drumline.jobs.keeper_files import run_of
from drumline.service.event_stream import Event, EventReader
from drumline.service.serving import address_of, listening
from tests.service.servers import LIMIT_S, Served, served

STREAM = {"Accept": "text/event-stream"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served")) as found:
        yield found


def _until(is_so: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < limit, "it did not come to be"
        time.sleep(0.05)


def _events(answer: httpx.Response, reader: EventReader) -> Iterator[Event]:
    reader.begin()
    for chunk in answer.iter_raw():
        yield from reader.feed(chunk)


def test_a_stream_is_complete_to_the_last_line_across_reconnects(server: Served) -> None:
    job, written = server.job(), 1500
    metrics = run_of(server.folder(job)).metrics

    def write() -> None:
        with metrics.open("a", buffering=1) as file:
            for number in range(written):
                # In two halves, so that readers meet half a line.
                file.write(f'{{"step": {number}, ')
                file.flush()
                file.write('"loss": NaN}\n')
                if number % 100 == 0:
                    time.sleep(0.01)
            file.write('{"step": "the last, without an end"}')
        server.end(job)

    writer = threading.Thread(target=write)
    writer.start()
    found: list[Any] = []
    reader, connections, is_done = EventReader(), 0, False
    while not is_done:
        headers = STREAM | ({"Last-Event-ID": reader.last_id} if reader.last_id else {})
        connections += 1
        with httpx.stream("GET", f"{server.url}/jobs/{job.id}/metrics", headers=headers, timeout=LIMIT_S) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            wanted = len(found) + 97 * connections
            for event in _events(answer, reader):
                if event.name == "record":
                    found.append(event.data["step"])
                is_done = event.name == "end"
                if is_done or len(found) >= wanted:
                    break
    writer.join()
    assert found == [*range(written), "the last, without an end"] and connections >= 4


def test_two_hundred_listeners_hear_everything_and_cost_little(server: Served) -> None:
    job = server.job()
    log = server.folder(job) / "command.log"
    log.write_text("first\n")
    process = psutil.Process(server.process.pid)

    async def listen(client: httpx.AsyncClient, heard: list[int]) -> list[str]:
        reader, lines = EventReader(), []
        async with client.stream("GET", f"{server.url}/jobs/{job.id}/logs", headers=STREAM) as answer:
            async for chunk in answer.aiter_raw():
                for event in reader.feed(chunk):
                    if event.name == "line":
                        lines.append(event.data)
                        heard[0] += len(lines) == 1
        return lines

    async def listen_all() -> tuple[list[list[str]], float, int]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=LIMIT_S) as client:
            heard = [0]
            tasks = [asyncio.create_task(listen(client, heard)) for _ in range(200)]
            while heard[0] < len(tasks):
                await asyncio.sleep(0.05)
            before, began = process.cpu_times(), time.monotonic()
            await asyncio.sleep(0.8)  # idle: nothing is written
            after = process.cpu_times()
            share = (after.user + after.system - before.user - before.system) / (time.monotonic() - began)
            num_threads = process.num_threads()
            with log.open("a") as file:
                file.write("second\nlast")
            server.end(job)
            return await asyncio.gather(*tasks), share, num_threads

    lines, share, num_threads = asyncio.run(listen_all())
    assert lines == [["first", "second", "last"]] * 200
    assert share < 0.5 and num_threads < 80, (share, num_threads)


def test_clients_that_vanish_leave_nothing(server: Served) -> None:
    job = server.job()
    process = psutil.Process(server.process.pid)
    assert _streams(server) == 0
    files = process.num_fds()
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as client:
            client.sendall(
                f"GET /jobs/{job.id}/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode()
            )
            assert b"200" in client.recv(100)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # gone without goodbye
    _until(lambda: _streams(server) == 0)
    _until(lambda: process.num_fds() <= files + 5)


def _streams(server: Served) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    return float(next(line for line in text.splitlines() if line.startswith("drumline_streams ")).split()[1])


def test_a_file_that_begins_anew_is_told_as_such(server: Served) -> None:
    job = server.job()
    metrics = run_of(server.folder(job)).metrics
    metrics.write_text('{"step": 1}\n{"step": 2}\n')
    reader, names = EventReader(), []
    with httpx.stream("GET", f"{server.url}/jobs/{job.id}/metrics", headers=STREAM, timeout=LIMIT_S) as answer:
        for event in _events(answer, reader):
            names.append(event.name if event.name != "record" else event.data["step"])
            if event.data == {"step": 2} and "rewritten" not in names:
                (metrics.parent / "other").write_text('{"step": 1}\n')
                (metrics.parent / "other").replace(metrics)
                server.end(job)
    assert names == [1, 2, "rewritten", 1, "end"]


@pytest.mark.parametrize(
    "start",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"NONSENSE\r\n\r\n",
        b"GET /jobs HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 9\r\n\r\nhello",
        b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET /jobs\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /" + b"a" * 40_000,
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40_000,
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 20_000 + b"\r\n",
    ],
    ids=["tls", "version", "long", "two lengths", "chunks", "nul", "address", "endless header", "many headers"],
)
def test_what_is_no_http_is_refused_and_the_server_goes_on(server: Served, start: bytes) -> None:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=LIMIT_S) as client:
        client.sendall(start)
        answer = client.recv(1000)
    assert answer == b"" or b" 4" in answer.split(b"\r\n")[0]
    assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_trailers_without_end_are_cut_off(server: Served) -> None:
    """They come after the body, whose limit they do not count for, and after the answer."""
    sent = 0
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=LIMIT_S) as client:
        client.sendall(b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
        try:
            while sent < 100 * 2**20:
                client.sendall(b"X: a\r\n" * 10_000)
                sent += 60_000
        except OSError:  # it has closed the connection
            pass
    assert sent < 10 * 2**20
    assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_a_hundred_megabytes_in_chunks_are_cut_off_early(server: Served) -> None:
    memory = psutil.Process(server.process.pid).memory_info().rss
    sent = 0
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=LIMIT_S) as client:
        client.sendall(
            b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        try:
            while sent < 100 * 2**20:
                client.sendall(chunk)
                sent += 65536
        except OSError:  # it has closed the connection
            pass
        assert sent < 60 * 2**20
    assert httpx.get(f"{server.url}/healthz").status_code == 200
    assert psutil.Process(server.process.pid).memory_info().rss < memory + 120 * 2**20


def test_it_ends_in_order_while_streams_are_open(tmp_path: Path) -> None:
    with served(tmp_path) as found:
        job = found.job()
        with httpx.stream("GET", f"{found.url}/jobs/{job.id}/logs", headers=STREAM, timeout=LIMIT_S) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith(":")
            began = time.monotonic()
            found.process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert found.process.wait(LIMIT_S) == 0
        assert "event: end" not in rest and time.monotonic() - began < 5
        assert found.process.stdout is not None and found.process.stdout.read().strip() == "1"


def test_no_answer_waits_for_an_acknowledgement() -> None:
    with listening("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()) as asks:
        accepted, _ = listener.accept()
        with accepted:
            assert asks.getpeername() == accepted.getsockname()
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_address_that_somebody_has_is_told() -> None:
    with listening("127.0.0.1", 0) as taken, pytest.raises(ServeError, match="nothing can be served"):
        listening("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ServeError):
        listening("no such host", 1)


def test_the_address_is_one_that_a_browser_here_can_open() -> None:
    told = [
        address_of(ServiceConfig.model_validate({"host": host, "prefix": "/x"})) for host in ("0.0.0.0", "::1", "gpu")
    ]
    assert told == ["http://localhost:8000/x/", "http://[::1]:8000/x/", "http://gpu:8000/x/"]
