"""Jobs of several machines in one store: what lies on another one is told as such, and not as empty."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from drumline.errors import Conflict
from drumline.jobs.keeper_files import answers_of, log_of, run_of
from drumline.jobs.records import Job, Resources, Work
from drumline.jobs.store import open_store, store_url
from drumline.service.in_process import InProcess
from drumline.service.state import Service
from tests.service.services import bearer, config, finetune, running

FILES = ("logs", "logs?tail=5", "metrics", "events", "config", "checkpoints")


@pytest.fixture
def service(tmp_path: Path) -> Any:
    with running(config(tmp_path)) as (client, opened):
        yield client, opened


Pair = tuple[TestClient, Service]


def job_of(service: Service, node: str, *, kind: Any = "finetune") -> Job:
    """An ended job of a machine, whose folder is not here."""
    now = time.time()
    work = Work(kind, {}, model="/models/tiny", model_name="tiny")
    result = {"best_loss": 1.5}
    job = Job(f"job-{node}-{kind}", "local", work, Resources(), now, "succeeded", ended=now, node=node, result=result)
    service.store.jobs.add(job)
    return job


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_files_of_another_machine_are_no_empty_files(service: Pair, accept: str) -> None:
    client, opened = service
    job = job_of(opened, "gpu-2")
    for what in FILES:
        answer = client.get(f"/jobs/{job.id}/{what}", headers={"Accept": accept})
        assert answer.status_code == 409 and answer.headers["content-type"] == "application/problem+json", what
        told = answer.json()
        assert (told["code"], told["detail"]) == ("conflict", f"the files of {job.id} lie on gpu-2") and told["fix"]


def test_the_job_itself_is_told_without_what_its_files_say(service: Pair) -> None:
    client, opened = service
    job = job_of(opened, "gpu-2")
    told = client.get(f"/jobs/{job.id}").json()
    assert (told["best_loss"], told["training_history"], told["log_sources"]) == (1.5, None, None)
    assert told["note"].startswith(f"the files of {job.id} lie on gpu-2: ")
    assert client.get("/jobs").json()["items"][0]["id"] == job.id


def test_answers_of_another_machine_are_not_gone(service: Pair) -> None:
    client, opened = service
    job = job_of(opened, "gpu-2", kind="infer")
    answer = client.get(f"/jobs/{job.id}/output")
    assert answer.status_code == 409 and "lie on gpu-2" in answer.json()["detail"]
    answers_of(opened.board.folder(job), "jsonl").parent.mkdir(parents=True)
    assert client.get(f"/jobs/{job.id}/output").status_code == 404
    answers_of(opened.board.folder(job), "jsonl").write_text("{}\n")
    assert client.get(f"/jobs/{job.id}/output").text == "{}\n"


def test_a_folder_that_machines_share_is_read_by_each_of_them(service: Pair) -> None:
    client, opened = service
    job = job_of(opened, "gpu-2")
    run = run_of(opened.board.folder(job))
    run.logs.mkdir(parents=True)
    log_of(opened.board.folder(job)).write_text("one\n")
    run.metrics.write_text('{"kind": "train", "step": 1}\n')
    assert client.get(f"/jobs/{job.id}/logs").json()["lines"] == ["one"]
    told = client.get(f"/jobs/{job.id}").json()
    assert (len(told["training_history"]), told["log_sources"], told["note"]) == (1, ["command"], "")


def test_a_folder_of_this_machine_that_is_gone_has_empty_files(service: Pair) -> None:
    client, opened = service
    job = job_of(opened, opened.node)
    assert client.get(f"/jobs/{job.id}/logs").json()["lines"] == []
    assert [client.get(f"/jobs/{job.id}/{what}").status_code for what in FILES] == [200] * len(FILES)
    assert client.get(f"/jobs/{job.id}").json()["note"] == ""


def test_who_may_not_see_a_job_does_not_learn_where_it_lies(tmp_path: Path) -> None:
    with running(config(tmp_path, access={"keys": "required"})) as (client, opened):
        job = job_of(opened, "gpu-2")
        answer = client.get(f"/jobs/{job.id}/logs", headers=bearer(opened, "bob"))
        assert answer.status_code == 404 and "lie on" not in answer.text


def test_the_command_without_a_service_says_it_too(tmp_path: Path) -> None:
    settings = config(tmp_path)
    with InProcess(settings) as jobs, closing(open_store(store_url(settings))) as store:
        made = jobs.submit(finetune())
        here = store.jobs.get(made.id)
        assert here is not None
        store.jobs.add(Job("job-there", "local", here.work, Resources(), time.time(), "failed", node="gpu-2"))
        with pytest.raises(Conflict, match="lie on gpu-2"):
            list(jobs.logs("job-there"))
        assert "gpu-2" in jobs.get("job-there").note and jobs.get(made.id).note == ""
