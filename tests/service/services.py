"""Services for tests: a store in a folder, nobody who starts jobs, and clients with and without keys."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.testclient import TestClient

from drumline.config.service import ServiceConfig
from drumline.jobs.records import Job, Resources, State, Work
from drumline.jobs.requests import Role
from drumline.service.app import create_app
from drumline.service.new_keys import new_key
from drumline.service.opening import open_service
from drumline.service.state import Service

BASE = "http://localhost"


def config(folder: Path, **settings: Any) -> ServiceConfig:
    """A service's settings, with room for many requests and a model that may be named."""
    model = folder / "models" / "tiny"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text('{"model_type": "gpt2"}')
    values = {
        "data_dir": folder / "data",
        "files": {"model_names": {"tiny": model}},
        "access": {"requests_per_minute": 1_000_000, "changes_per_minute": 1_000_000},
    }
    return ServiceConfig.model_validate({**values, **settings})


KEYED = {"keys": "required", "requests_per_minute": 1_000_000, "changes_per_minute": 1_000_000}


@contextmanager
def running(settings: ServiceConfig) -> Iterator[tuple[TestClient, Service]]:
    """The application in this process, without a supervisor: jobs stay queued."""
    app, opened = _application(settings.prefix)
    opened.append(settings)
    with TestClient(app, base_url=BASE, raise_server_exceptions=False) as client:
        yield client, app.state.drumline


@cache
def _application(prefix: str) -> tuple[FastAPI, list[ServiceConfig]]:
    """An application, which takes long to make, and the settings with which it is opened each time."""
    wanted: list[ServiceConfig] = []
    app = create_app(ServiceConfig(prefix=prefix), opener=lambda _: open_service(wanted[-1], supervise=False))
    return app, wanted


def bearer(service: Service, owner: str, role: Role = "user") -> dict[str, str]:
    """Headers of a new key."""
    secret, key = new_key(owner, role, time.time())
    service.store.keys.add(key)
    return {"Authorization": f"Bearer {secret}"}


def add_job(service: Service, owner: str = "local", state: State = "queued", **values: Any) -> Job:
    """A job in the store, whatever its state."""
    now = time.time()
    job_id = values.pop("id", f"job-{owner}-{state}-{time.monotonic_ns()}")
    work = values.pop("work", Work("finetune", {}, model="/models/tiny", model_name="tiny"))
    ended = now if state in ("succeeded", "failed", "cancelled", "timed_out", "lost") else None
    job = Job(job_id, owner, work, Resources(devices=1), now, state, ended=ended, node=service.node, **values)
    service.store.jobs.add(job)
    folder = service.board.folder(job)
    folder.mkdir(mode=0o700, parents=True)
    return job


def finetune(**values: Any) -> dict[str, Any]:
    """A request for a job."""
    return {"kind": "finetune", "model_name": "tiny", "texts": ["one", "two"], **values}
