"""People who ask a service for jobs over HTTP while it is killed: with keys, and each job until it is answered."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import yaml

from drumline import Client
from drumline.errors import RemoteError, ServiceUnreachable
from drumline.jobs.records import Job
from drumline.jobs.store import Store
from drumline.service.new_keys import new_key
from tests.chaos.service_victim import NODE, POLICY

LIMIT_S = 120.0
"""Within which a request is answered, however often its service is killed; far more than it takes."""
CALLERS = 4


class NoAnswer(Exception):
    """A request that nobody answered."""


@dataclass
class Callers:
    """Clients of services on this machine, and what they were told."""

    store: Store
    ports: list[int]
    keys: dict[str, str] = field(default_factory=dict)
    """Owner -> secret."""
    ids: dict[str, str] = field(default_factory=dict)
    """Idempotency key -> the job's id, as the first answer told it."""
    unanswered: int = 0
    """Requests that had to be sent again, since their service was gone."""
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(CALLERS))
    _asked: list[Future[str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        for owner in ("ann", "bob"):
            self.keys[owner], key = new_key(owner, "user", time.time())
            self.store.keys.add(key)

    def ask_for(self, job: Job) -> None:
        """Begin to ask for a job like this one; another thread goes on until it is told its id."""
        self._asked.append(self._threads.submit(self.submit, job))

    def wait_for_answers(self) -> None:
        """Until all have been told. Raises NoAnswer."""
        for future in self._asked:
            future.result(LIMIT_S)
        self._asked.clear()

    def submit(self, job: Job) -> str:
        """Ask for it under the idempotency key that is its id, again and again; returns the id that was told."""
        wanted = job.resources
        resources = (
            {"min_devices": wanted.min_devices, "max_devices": wanted.max_devices}
            if wanted.is_elastic
            else {"devices": wanted.devices}
        )
        request = {
            "kind": "finetune",
            "model_name": "tiny",
            "texts": ["one", "two"],
            "name": json.dumps(dict(job.work.settings)),
            "resources": {**resources, "priority": wanted.priority, "preemptible": wanted.preemptible},
            "tags": [job.id],
        }
        told = self._until_answered(job.owner, lambda client: client.submit(request, idempotency_key=job.id).id)
        with self._lock:
            if self.ids.setdefault(job.id, told) != told:
                raise NoAnswer(f"{job.id} was told {self.ids[job.id]}, and asked again {told}")
        return told

    def cancel(self, job: Job) -> None:
        """Ask until it is answered."""
        self._until_answered(job.owner, lambda client: client.cancel(job.id).id)

    def state_of(self, job: Job) -> str:
        """As its owner is told."""
        return self._until_answered(job.owner, lambda client: str(client.get(job.id).state))

    def close(self) -> None:
        """End the threads, which no service answers any more."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _until_answered(self, owner: str, ask: Callable[[Client], str]) -> str:
        limit, number = time.monotonic() + LIMIT_S, 0
        while True:
            port = self.ports[number % len(self.ports)]
            try:
                with Client(f"http://127.0.0.1:{port}", self.keys[owner], tries=1, timeout_s=20.0) as client:
                    return ask(client)
            except (ServiceUnreachable, RemoteError) as error:
                if isinstance(error, RemoteError) and error.status < 500:
                    raise
                if time.monotonic() > limit:
                    raise NoAnswer(f"no answer within {LIMIT_S:g} s") from error
                with self._lock:
                    self.unanswered += 1
                number += 1
                time.sleep(0.05)


def is_ready(port: int) -> bool:
    """Whether a service answers there."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5.0).is_success
    except httpx.TransportError:
        return False


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses, so that a service is found where the killed one before it was."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def write_settings(folder: Path, url: str, num_slots: int) -> Path:
    """Settings for `drumline serve`: keys are asked for, and a model may be named."""
    model = folder / "models" / "tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"model_type": "gpt2"}')
    values = {
        "data_dir": str(folder),
        "database": url,
        "node": NODE,
        "access": {"keys": "required", "requests_per_minute": 1_000_000, "changes_per_minute": 1_000_000},
        "files": {"model_names": {"tiny": str(model)}},
        "scheduling": {**POLICY.model_dump(mode="json"), "cpu_slots": num_slots},
    }
    file = folder / "service.yaml"
    file.write_text(yaml.safe_dump(values))
    return file
