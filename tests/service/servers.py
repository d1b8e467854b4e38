"""A server in a process of its own, and beside it its store."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drumline.config.service import ServiceConfig
from drumline.jobs.keeper_files import run_of
from drumline.jobs.records import Job, Resources, Work
from drumline.jobs.store import Store, open_store, store_url

SERVE = """
import sys
from drumline.config.service import ServiceConfig
from drumline.service.serving import serve
print(serve(ServiceConfig.model_validate_json(sys.argv[1]), lambda address: print(address, flush=True)), flush=True)
"""
LIMIT_S = 20.0


@dataclass
class Served:
    """A server and, beside it, its store."""

    process: subprocess.Popen[str]
    url: str
    store: Store
    config: ServiceConfig

    def job(self, state: Any = "running") -> Job:
        """A job of another machine, so that the server's supervisor leaves it alone."""
        job_id = f"job-{time.monotonic_ns()}"
        job = Job(job_id, "local", Work("train", {}), Resources(), time.time(), state, node="elsewhere")
        self.store.jobs.add(job)
        run_of(self.folder(job)).logs.mkdir(parents=True)
        return job

    def folder(self, job: Job) -> Path:
        return self.config.data_dir / "jobs" / job.id

    def end(self, job: Job) -> None:
        self.store.jobs.update(job.id, lambda found: replace(found, state="succeeded", ended=time.time()))


@contextmanager
def served(folder: Path, program: str = SERVE, **settings: Any) -> Iterator[Served]:
    """Start one with room for many requests, and end it."""
    values = {
        "port": 0,
        "data_dir": folder,
        "access": {"requests_per_minute": 1_000_000, "changes_per_minute": 1_000_000},
        "scheduling": {"cpu_slots": 1},
    }
    config = ServiceConfig.model_validate({**values, **settings})
    command = [sys.executable, "-c", program, config.model_dump_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip().rstrip("/")
            store = open_store(store_url(config))
            try:
                yield Served(process, url, store, config)
            finally:
                store.close()
        finally:
            process.terminate()
            process.wait(LIMIT_S)
