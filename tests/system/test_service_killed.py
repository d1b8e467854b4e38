"""Services that are killed while jobs run, on both kinds of store; and real training under a service."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from drumline.config.load import read_overrides
from drumline.jobs.commands import commands_of
from drumline.jobs.keeper_files import Command
from drumline.jobs.records import Job
from drumline.rundir import RunDir, read_json, read_lines
from tests.chaos.service_kills import ServiceKills
from tests.cli.real_command import write_recipe
from tests.cli.simulated_job import simulated_commands
from tests.cli.supervised import Supervised
from tests.postgresql_server import postgresql_server

pytestmark = pytest.mark.system

STEPS, LOGGED = 4000, 40
"""Of a run that goes through three attempts: enough that it has not ended before it has changed its size twice; and
between two lines of its metrics."""
SOON_S = 5.0
"""From the end of a launcher until its keeper has ended the workers and told of it, by recorded moments."""
LIMIT_S = 300.0
"""Most of a real run's time is its processes' start, and other tests may have the cores."""


@pytest.mark.parametrize("is_http", [False, True], ids=["in the store", "over HTTP"])
def test_a_service_that_is_killed_again_and_again_loses_no_job(is_http: bool, tmp_path: Path) -> None:
    """Jobs come into the store, or by requests that are repeated where the kill took their answer."""
    url = f"sqlite:///{tmp_path / 'store.sqlite3'}"
    kills = ServiceKills(tmp_path, url, 1, random.Random(1), is_http=is_http)
    try:
        print(kills.run(*((6, 3) if is_http else (8, 5))))
        assert kills.missed == 0
    finally:
        kills.close()


@pytest.mark.parametrize("seed", [2])
def test_two_services_on_one_postgresql_take_over_from_each_other(seed: int, tmp_path: Path) -> None:
    with postgresql_server() as server:
        kills = ServiceKills(tmp_path, server.make_database(), 2, random.Random(seed))
        try:
            print(kills.run(8, 5))
        finally:
            kills.close()


def commands(job: Job, folder: Path) -> list[Command]:
    """Real ones for a job with real settings."""
    return simulated_commands(job, folder) if "does" in job.work.settings else commands_of(job, folder, folder)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Supervised]:
    """One that trains."""
    service = Supervised(tmp_path / "data", commands=commands)
    yield service
    service.close()


def settings(folder: Path) -> dict[str, Any]:
    """A run of some seconds."""
    texts = write_recipe(folder)
    values: dict[str, Any] = {
        "data": {
            "kind": "text",
            "train": [str(texts / "text.txt")],
            "eval": [str(texts / "held_out.txt")],
            "context": 16,
        },
        "model": {"num_layers": 1, "num_heads": 2, "width": 16},
        "train": {"global_batch": 8, "max_steps": STEPS, "lr": 0.003},
        "checkpoint": {"every": 500},
        "track": {"every": LOGGED},
    }
    return values


def sizes(run: RunDir) -> list[int]:
    """With how many processes the attempts of a run have gone on."""
    events = read_lines(run.events) if run.events.exists() else []
    return [event["world_size"] for event in events if event["event"] == "resume"]


def test_a_run_shrinks_and_grows_again_with_the_same_batch(service: Supervised, tmp_path: Path) -> None:
    service.add("low", devices=1, min_devices=1, max_devices=2, settings=settings(tmp_path))
    job = service.until_it_works("low", LIMIT_S)
    assert len(job.devices) == 2
    service.add("high", does="long", priority=5)
    service.until_it_works("high", LIMIT_S)
    run = RunDir(service.executor.folder("low") / "run")
    job = service.until("low", lambda job: job.has_ended or (job.state == "running" and sizes(run) == [1]), LIMIT_S)
    assert (job.state, job.attempt, len(job.devices)) == ("running", 2, 1)
    service.ask("high", "cancel")
    service.until_ended("high")
    job = service.until_ended("low", LIMIT_S)
    assert (job.state, job.message, job.failures) == ("succeeded", "", 0)
    assert (job.attempt, len(job.devices)) == (3, 2)
    assert sizes(run) == [1, 2]
    steps = [line["step"] for line in read_lines(run.metrics) if line["kind"] == "train"]
    assert steps == [*range(LOGGED, STEPS + 1, LOGGED)]
    assert read_json(run.plan)["global_batch"] == 8
    assert job.result["best_loss"] > 0
    assert job.result["usage"]["useful_seconds"] > 0


def test_a_killed_launcher_of_a_real_run(service: Supervised, tmp_path: Path) -> None:
    service.add("a", devices=2, settings=settings(tmp_path))
    job = service.until_it_works("a", LIMIT_S)
    [launcher] = psutil.Process(job.pid).children()
    os.kill(launcher.pid, signal.SIGKILL)
    killed = time.time()
    job = service.until_ended("a", LIMIT_S)
    assert (job.state, job.reason) == ("failed", "killed")
    end = service.files(job).read_end()
    assert end is not None and end.time - killed < SOON_S
    lines = read_lines(RunDir(service.executor.folder("a") / "run").metrics)
    assert all(line["step"] < STEPS for line in lines if line["kind"] == "train"), "its workers trained on"
    assert service.processes(job) == []
    assert service.store.leases.all() == ()
    request = read_json(service.files(job).request)
    overrides = read_overrides([word for word in request[0]["words"] if "=" in word])
    assert overrides["hardware"]["num_processes"] == 2
