"""Where alerts go: log, file, webhook, e-mail. Whoever raises them never waits for a network."""

from __future__ import annotations

import http.client
import json
import logging
import os
import queue
import smtplib
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Protocol

from drumline.config.monitor import AlertsConfig, EmailSink, Severity
from drumline.errors import ConfigError
from drumline.rundir import LineWriter

logger = logging.getLogger("drumline")

LIMIT_S = 10.0
"""For one attempt to reach a server."""
PAUSES_S = (1.0, 5.0, 30.0, 120.0)
"""Before each further attempt; after the last one an alert is given up, which the log says."""
MOST_WAITING = 1000
"""Alerts that wait for a server; beyond it the oldest are given up."""

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.ERROR}
_SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")

Note = Mapping[str, Any]
"""An alert as JSON: what Alert.to_json gives, and whatever else places it (time, node, run)."""


class Sink(Protocol):
    """Takes one alert; raises OSError where it could not be delivered and another attempt may help."""

    def send(self, note: Note) -> None:
        """Deliver it, or raise."""
        ...


def log_sink(note: Note) -> None:
    """Write an alert to drumline's log, in the level of its severity; one that is over as information."""
    level = logging.INFO if note["state"] == "resolved" else _LEVELS[note["severity"]]
    action = f"; {note['action']}" if note["action"] and note["state"] != "resolved" else ""
    logger.log(level, "alert %s: %s: %s%s", note["state"], note["subject"], note["message"], action)


class FileSink:
    """Appends a line of JSON an alert."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, note: Note) -> None:
        """Open, append, close: the file may be rotated between two alerts."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        writer = LineWriter(self._path)
        try:
            writer.write(dict(note))
        finally:
            writer.close()


class WebhookSink:
    """POSTs an alert as JSON; an answer other than 2xx counts as not delivered."""

    def __init__(self, url: str, limit_s: float = LIMIT_S) -> None:
        self._url = url
        self._limit_s = limit_s

    def send(self, note: Note) -> None:
        """One attempt. Raises OSError."""
        data = json.dumps(note, default=str).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "drumline"}
        request = urllib.request.Request(self._url, data, headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=self._limit_s) as answer:
                answer.read(1)
        except urllib.error.HTTPError as refusal:
            refusal.close()
            raise
        except http.client.HTTPException as broken:
            raise OSError(f"the answer is no HTTP: {broken!r}") from broken


class EmailsSink:
    """Sends an alert as a message of plain text."""

    def __init__(self, settings: EmailSink, limit_s: float = LIMIT_S, environ: Mapping[str, str] = os.environ) -> None:
        """Raises ConfigError where the variable with the password is not set."""
        self._settings = settings
        self._limit_s = limit_s
        self._password = ""
        if settings.password_env is not None:
            self._password = _kept_in(settings.password_env, "monitor.alerts.email.password_env", environ)

    def send(self, note: Note) -> None:
        """One attempt. Raises OSError, of which smtplib's errors are."""
        settings = self._settings
        server: smtplib.SMTP
        if settings.security == "tls":
            context = ssl.create_default_context()
            server = smtplib.SMTP_SSL(settings.host, settings.port, timeout=self._limit_s, context=context)
        else:
            server = smtplib.SMTP(settings.host, settings.port, timeout=self._limit_s)
        with server:
            if settings.security == "starttls":
                server.starttls(context=ssl.create_default_context())
            if settings.username is not None:
                server.login(settings.username, self._password)
            server.send_message(_message(settings, note))


def _message(settings: EmailSink, note: Note) -> EmailMessage:
    message = EmailMessage()
    title = f"[drumline] {note['state']}: {note['rule']} ({note['severity']}) {note['subject']}"
    message["Subject"] = " ".join(title.split())
    message["From"], message["To"] = settings.sender, ", ".join(settings.recipients)
    message.set_content("\n".join(f"{name}: {value}" for name, value in note.items()) + "\n")
    return message


class Courier:
    """Hands alerts to one sink on a thread of its own, again and again until they are delivered or given up."""

    def __init__(self, name: str, sink: Sink, pauses_s: Sequence[float] = PAUSES_S) -> None:
        """name: for the log. pauses_s: before each further attempt."""
        self._name = name
        self._sink = sink
        self._pauses_s = tuple(pauses_s)
        self._waiting: queue.Queue[Note | None] = queue.Queue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"drumline alerts to {name}", daemon=True)
        self._thread.start()

    def send(self, note: Note) -> None:
        """Take an alert; returns at once."""
        if self._waiting.qsize() >= MOST_WAITING:
            logger.warning("%s: more than %d alerts wait, the oldest is given up", self._name, MOST_WAITING)
            with suppress(queue.Empty):
                self._waiting.get_nowait()
        self._waiting.put(note)

    def close(self, limit_s: float) -> None:
        """One more attempt for each that waits, within limit_s; what is not delivered then is given up."""
        self._waiting.put(None)
        self._closing.set()
        self._thread.join(limit_s)

    def _work(self) -> None:
        while (note := self._waiting.get()) is not None:
            self._deliver(note)

    def _deliver(self, note: Note) -> None:
        for pause_s in (*self._pauses_s, None):
            try:
                self._sink.send(note)
            except (OSError, ValueError) as error:  # ValueError: a URL or an address that cannot be one
                last = pause_s is None or self._closing.is_set()
                words = "given up" if last else f"next attempt in {pause_s:g} s"
                logger.warning("%s did not take the alert %s (%s): %s", self._name, note["rule"], error, words)
                if last:
                    return
                self._closing.wait(pause_s)
            else:
                return


class Sinks:
    """All that are told of alerts: the log of each, the others of those that are severe enough."""

    def __init__(self, config: AlertsConfig, pauses_s: Sequence[float] = PAUSES_S) -> None:
        """Raises ConfigError for an e-mail password or a webhook that is nowhere."""
        self._least = _SEVERITIES.index(config.min_severity)
        sinks: dict[str, Sink] = {}
        if config.file is not None:
            sinks[str(config.file)] = FileSink(config.file)
        if config.webhook_env is not None:
            url = _kept_in(config.webhook_env, "monitor.alerts.webhook_env", os.environ)
            sinks[_without_secrets(url)] = WebhookSink(url)
        if config.email is not None:
            sinks[config.email.host] = EmailsSink(config.email)
        self._couriers = [Courier(name, sink, pauses_s) for name, sink in sinks.items()]

    def send(self, note: Note) -> None:
        """Tell of an alert that fires or is resolved; returns at once."""
        log_sink(note)
        if _SEVERITIES.index(note["severity"]) >= self._least:
            for courier in self._couriers:
                courier.send(note)

    def close(self, limit_s: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        """Deliver what can be delivered within limit_s."""
        end = clock() + limit_s
        for courier in self._couriers:
            courier.close(max(0.0, end - clock()))


def _kept_in(variable: str, setting: str, environ: Mapping[str, str]) -> str:
    if variable not in environ:
        raise ConfigError(
            f"{setting}: the variable {variable} is not set",
            "export it where the command is started, or leave the setting out",
        )
    return environ[variable]


def _without_secrets(url: str) -> str:
    """Scheme and host: the path of a webhook is often its password."""
    return "/".join(url.split("/", 3)[:3]).rpartition("@")[2]
