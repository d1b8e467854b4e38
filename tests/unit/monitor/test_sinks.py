"""Alerts arrive at real servers, also at ones that refuse, hang or are not there, and nobody waits for them."""

from __future__ import annotations

import base64
import json
import logging
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from drumline.config.monitor import AlertsConfig
from drumline.errors import ConfigError
from drumline.monitor.sinks import EmailsSink, Sinks, WebhookSink
from drumline.rundir import read_lines
from tests.unit.monitor.servers import mail_server, web_server

NOTE: dict[str, Any] = {
    "time": 1.0,
    "run": "runs/moby",
    "rule": "xid_failed",
    "subject": "GPU-a",
    "state": "firing",
    "value": 1.0,
    "severity": "critical",
    "message": "xid failed: xid_failures is 1 (above 0)",
    "action": "see drumline doctor",
}
QUICK = (0.01, 0.01)


def sinks(pauses_s: tuple[float, ...] = QUICK, webhook: str | None = None, **settings: Any) -> Sinks:
    if webhook is None:
        return Sinks(AlertsConfig.model_validate(settings), pauses_s)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOOK_URL", webhook)
        return Sinks(AlertsConfig.model_validate({**settings, "webhook_env": "HOOK_URL"}), pauses_s)


def test_a_webhook_gets_the_alert_as_json() -> None:
    with web_server() as (url, inbox):
        told = sinks(webhook=url)
        told.send(NOTE)
        told.close()
    assert inbox.got == [("application/json", NOTE)]


def test_a_server_that_refuses_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    with web_server() as (url, inbox):
        inbox.refuses = 2
        told = sinks(webhook=url)
        told.send(NOTE)
        inbox.wait_for(3)
        told.close()
    assert [body["rule"] for _, body in inbox.got] == ["xid_failed"]
    warnings = [record.message for record in caplog.records if "did not take" in record.message]
    assert len(warnings) == 2
    assert "503" in warnings[0]
    assert "next attempt in 0.01 s" in warnings[0]
    assert not any("secret" in record.message for record in caplog.records)


def test_after_the_last_attempt_it_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    with web_server() as (url, inbox):
        inbox.refuses = 3
        told = sinks(webhook=url)
        told.send(NOTE)
        inbox.wait_for(3)
        told.send({**NOTE, "rule": "idle"})
        told.close()
    assert [body["rule"] for _, body in inbox.got] == ["idle"]
    assert [record.message.rpartition(": ")[2] for record in caplog.records if "did not take" in record.message] == [
        "next attempt in 0.01 s",
        "next attempt in 0.01 s",
        "given up",
    ]


def test_nobody_waits_for_a_server_that_hangs() -> None:
    with web_server() as (url, inbox):
        inbox.hangs = True
        told = sinks(webhook=url)
        began = time.monotonic()
        for _ in range(50):
            told.send(NOTE)
        inbox.wait_for(1)
        told.close(limit_s=0.05)
        assert time.monotonic() - began < 5


def test_one_that_is_not_there_is_given_up_at_the_end() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        told = sinks((60.0,), webhook=f"http://127.0.0.1:{port}/")
        began = time.monotonic()
        told.send(NOTE)
        told.close()
        assert time.monotonic() - began < 5


def test_a_webhook_raises_what_another_attempt_may_mend() -> None:
    with web_server() as (url, inbox):
        inbox.hangs = True
        with pytest.raises(OSError, match="timed out"):
            WebhookSink(url, limit_s=0.05).send(NOTE)


def test_a_mail_has_all_of_the_alert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", "open sesame")
    with mail_server() as (port, inbox):
        told = sinks(
            email={
                "host": "127.0.0.1",
                "port": port,
                "security": "none",
                "username": "drum",
                "password_env": "MAIL_PASSWORD",
                "sender": "drum@example.org",
                "recipients": ["a@example.org", "b@example.org"],
            }
        )
        told.send(NOTE)
        inbox.wait_for(1)
        told.close()
    [(envelope, text)] = inbox.got
    assert base64.b64decode(envelope[0].split()[-1]) == b"\0drum\0open sesame"
    assert [line.split()[1] for line in envelope[1:]] == [
        "FROM:<drum@example.org>",
        "TO:<a@example.org>",
        "TO:<b@example.org>",
    ]
    assert "Subject: [drumline] firing: xid_failed (critical) GPU-a" in text
    assert "action: see drumline doctor" in text


def test_a_mail_that_is_refused_for_now_is_sent_again() -> None:
    with mail_server() as (port, inbox):
        inbox.refuses = 1
        address = {"host": "127.0.0.1", "port": port, "security": "none", "sender": "a@b.c", "recipients": ["d@e.f"]}
        told = sinks(email=address)
        told.send(NOTE)
        inbox.wait_for(2)
        told.close()
    assert len(inbox.got) == 1


def test_no_mail_goes_in_the_clear_where_encryption_is_asked_for() -> None:
    with mail_server() as (port, inbox):
        settings = AlertsConfig.model_validate(
            {"email": {"host": "127.0.0.1", "port": port, "sender": "a@b.c", "recipients": ["d@e.f"]}}
        )
        assert settings.email is not None
        with pytest.raises(OSError, match="STARTTLS"):
            EmailsSink(settings.email).send(NOTE)
    assert inbox.got == []


def test_a_password_that_is_nowhere_is_refused_at_once() -> None:
    address = {"host": "h", "sender": "a@b.c", "recipients": ["d@e.f"], "password_env": "NOT_SET_ANYWHERE"}
    with pytest.raises(ConfigError, match="NOT_SET_ANYWHERE"):
        sinks(email=address)


def test_a_file_gets_a_line_an_alert(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "alerts.jsonl"
    told = sinks(file=path)
    told.send(NOTE)
    told.send({**NOTE, "state": "resolved"})
    told.close()
    assert [record["state"] for record in read_lines(path)] == ["firing", "resolved"]
    assert json.loads(path.read_text().splitlines()[0]) == NOTE


def test_only_what_is_severe_enough_goes_further_than_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "drumline")
    told = sinks(file=tmp_path / "alerts.jsonl", min_severity="critical")
    for severity in ("info", "warning", "critical"):
        told.send({**NOTE, "severity": severity})
    told.send({**NOTE, "state": "resolved"})
    told.close()
    assert [record["severity"] for record in read_lines(tmp_path / "alerts.jsonl")] == ["critical", "critical"]
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "ERROR", "INFO"]
    assert caplog.records[2].message == (
        "alert firing: GPU-a: xid failed: xid_failures is 1 (above 0); see drumline doctor"
    )
