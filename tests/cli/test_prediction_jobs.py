"""Jobs that predict as real processes: told of row by row, stopped, gone on with, tried again by a new service."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from drumline.jobs.board import Board
from drumline.jobs.keeper_files import answers_of, rows_of, run_of
from drumline.jobs.records import Job, Resources, Work
from drumline.jobs.requests import Who
from drumline.predictions import DONE, PredictionDir
from drumline.rundir import read_lines
from tests.cli.simulated_prediction import simulated_infer
from tests.cli.supervised import NODE, Supervised

ANN = Who("ann")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Supervised]:
    """One with a slot and simulated commands."""
    service = Supervised(tmp_path / "data", 1, simulated_infer)
    yield service
    service.close()


def add(service: Supervised, name: str, *, retries: int = 0, **settings: Any) -> None:
    now = time.time()
    work = Work("infer", settings, model="/models/tiny", model_name="tiny")
    resources = Resources(devices=1, retries=retries)
    service.store.jobs.add(Job(name, "ann", work, resources, now, node=NODE, queued_since=now))
    folder = service.executor.folder(name)
    folder.mkdir(parents=True)
    rows_of(folder).write_text('{"text": "a"}\n')


def answered(service: Supervised, name: str) -> list[int]:
    """Rows by the order in which attempts answered them."""
    log = service.executor.folder(name) / "command.log"
    return [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("row ")]


def until_rows(service: Supervised, name: str, rows: int) -> Job:
    return service.until(name, lambda job: job.state == "running" and job.progress.get("rows_done", 0) >= rows)


def test_rows_are_told_and_the_answers_are_the_result(service: Supervised) -> None:
    add(service, "a", rows=5, pace_s=0.4)
    job = until_rows(service, "a", 2)
    assert job.progress["rows_total"] == 5 and "step" not in job.progress
    job = service.until("a", lambda job: "eta_s" in job.progress)
    assert job.progress["rows_per_s"] > 0 and job.progress["tokens_per_s"] > 0
    job = service.until_ended("a")
    folder = service.executor.folder("a")
    assert (job.state, job.attempt) == ("succeeded", 1)
    result = job.result
    assert (result["success"], result["rows"], result["rows_failed"]) == (True, 5, 1)
    assert result["output_path"] == str(answers_of(folder, "jsonl")) and result["model_path"] is None
    assert result["summary"]["errors"] == {"too long": 1}
    assert (job.progress["rows_done"], job.progress["rows_failed"]) == (5, 1)
    assert 0 < result["usage"]["useful_seconds"] <= job.used_s
    assert [line["text"] for line in read_lines(answers_of(folder, "jsonl"))] == [f"row {n}" for n in range(5)]


def test_a_new_service_finds_it_and_one_that_is_stopped_goes_on(service: Supervised) -> None:
    add(service, "a", rows=4, does="long")
    job = until_rows(service, "a", 3)
    service.supervisor.close()
    service.begin()  # another service's, which knows nothing
    assert service.until("a", lambda found: found.state == "running").pid == job.pid
    service.ask("a", "preempt")
    job = service.until("a", lambda found: found.attempt == 2 and found.state == "running")
    assert job.reason is None
    service.ask("a", "cancel")
    job = service.until_ended("a")
    assert (job.state, job.result["rows"], job.result["output_path"]) == ("cancelled", 3, None)
    assert answered(service, "a") == [0, 1, 2], "no row twice"


def test_a_failed_attempt_is_followed_by_one_that_goes_on(service: Supervised) -> None:
    add(service, "a", rows=4, does="failing", retries=1)
    job = service.until_ended("a")
    assert (job.state, job.attempt, job.failures) == ("succeeded", 2, 1)
    assert answered(service, "a") == [0, 1, 2, 3]


def test_one_that_is_killed_fails_and_a_new_job_takes_its_rows_on(service: Supervised) -> None:
    add(service, "a", rows=4, does="long")
    job = until_rows(service, "a", 3)
    [command] = [process for process in psutil.Process(job.pid).children() if process.pid in service.processes(job)]
    os.kill(command.pid, signal.SIGKILL)
    assert service.until_ended("a").reason == "killed"
    board = Board(service.store, service.config)
    again = board.retry("a", ANN, from_checkpoint=True)
    place = PredictionDir(run_of(board.folder(again)).path)
    assert list(place.state.read_bytes()) == [DONE] * 3 + [0]
    job = until_rows(service, again.id, 3)
    assert not (board.folder(again) / "command.log").exists() or answered(service, again.id) == []
    service.ask(again.id, "cancel")
    assert service.until_ended(again.id).progress["rows_done"] == 3
    assert json.dumps(dict(job.progress))
