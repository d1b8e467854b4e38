"""The server: answers scrapes, gives its port back, and is not to be held up by a client or a driver."""

from __future__ import annotations

import http.client
import logging
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from urllib.error import HTTPError

import pytest

from drumline.errors import ConfigError, ServeError
from drumline.monitor import exporter as module
from drumline.monitor.exporter import DEFAULT_PORT, Exporter, parse_address, serve
from drumline.monitor.prometheus import Collector
from tests.unit.monitor.whole_machine import Machine, until


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    machine.sampler.look()
    return machine


@pytest.fixture
def exporter(machine: Machine) -> Iterator[Exporter]:
    with serve(machine.collector, port=0) as exporter:
        yield exporter


def get(url: str, accept: str = "") -> tuple[str, str]:
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=10) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


def num_clients() -> int:
    return sum("process_request" in thread.name for thread in threading.enumerate())


def test_a_scrape_gets_everything_in_the_form_it_asks_for(exporter: Exporter) -> None:
    plain, content_type = get(exporter.url)
    assert "drumline_gpus 2.0\n" in plain and content_type.startswith("text/plain; version=0.0.4")
    modern, content_type = get(exporter.url, "application/openmetrics-text; version=1.0.0")
    assert modern.endswith("# EOF\n") and content_type.startswith("application/openmetrics-text; version=1.0.0")


def test_values_are_those_of_the_scrape(exporter: Exporter, machine: Machine) -> None:
    machine.now += 7
    assert "drumline_sample_age_seconds 7.0\n" in get(exporter.url)[0]


def test_other_places_say_where_the_metrics_are(exporter: Exporter) -> None:
    assert "/metrics" in get(exporter.url.removesuffix("metrics"))[0]
    with pytest.raises(HTTPError) as error:
        get(f"{exporter.url}/else")
    assert error.value.code == 404
    error.value.close()


def test_it_listens_on_this_machine_alone_unless_told(machine: Machine) -> None:
    with serve(machine.collector, port=0) as exporter:
        assert exporter.url == f"http://127.0.0.1:{exporter.port}/metrics"


def test_a_port_that_is_taken_is_told_and_free_again_after_the_end(machine: Machine) -> None:
    with serve(machine.collector, port=0) as first:
        with pytest.raises(ServeError, match=f"127.0.0.1:{first.port}.*in use"):
            serve(machine.collector, port=first.port)
        get(first.url)
    first.close()
    with serve(machine.collector, port=first.port) as second:
        assert "drumline_gpus" in get(second.url)[0]


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host"])
def test_an_address_that_is_not_ours_is_told(machine: Machine, host: str) -> None:
    with pytest.raises(ServeError, match=host):
        serve(machine.collector, host, 0)


def test_a_source_that_hangs_holds_no_scrape_up(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def hang() -> dict[tuple[str | None, int], int]:
        go_on.wait()
        return {}

    collector = Collector(machine.sampler, xids=hang)
    monkeypatch.setattr(collector._sources["xids"], "_limit_s", 0.05)
    with serve(collector, port=0) as exporter:
        try:
            began = time.monotonic()
            assert "drumline_gpus 2.0\n" in get(exporter.url)[0]
            assert time.monotonic() - began < 2
        finally:
            go_on.set()


def test_clients_that_say_nothing_leave_room_for_others(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module._Handler, "timeout", 0.05)
    silent = [socket.create_connection(("127.0.0.1", exporter.port)) for _ in range(5)]
    try:
        assert "drumline_gpus" in get(exporter.url)[0]
        assert [each.recv(1) for each in silent] == [b""] * 5, "they are hung up on"
    finally:
        for each in silent:
            each.close()


def test_more_clients_than_there_is_room_for_are_turned_away(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CLIENTS", 1)
    with serve(machine.collector, port=0) as exporter:
        with socket.create_connection(("127.0.0.1", exporter.port)) as first:
            until(lambda: num_clients() == 1)
            with socket.create_connection(("127.0.0.1", exporter.port)) as second:
                assert second.recv(1) == b""
            first.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert first.recv(8) == b"HTTP/1.0"
        until(lambda: num_clients() == 0)
        assert "drumline_gpus" in get(exporter.url)[0], "its place is free again"


def test_a_failing_scrape_is_in_the_log_and_the_server_goes_on(
    exporter: Exporter, machine: Machine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "drumline"):
        patch.setattr(machine.sampler, "age_s", lambda: 1 / 0)
        with pytest.raises(http.client.RemoteDisconnected):
            get(exporter.url)
        until(lambda: "ZeroDivisionError" in caplog.text)
    assert "drumline_gpus" in get(exporter.url)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9000", ("127.0.0.1", 9000)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("9000", ("127.0.0.1", 9000)),
        (":9000", ("127.0.0.1", 9000)),
        ("gpu-box", ("gpu-box", DEFAULT_PORT)),
        ("[::1]:9000", ("::1", 9000)),
        ("", ("127.0.0.1", DEFAULT_PORT)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize("text", ["a:b", "host:70000", "http://host:1", "host:1/metrics", "1:2:3", " :1", "me@host:1"])
def test_what_is_no_address_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="is no address"):
        parse_address(text)
