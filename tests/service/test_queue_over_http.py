"""Which place a job has: on the job, in lists, and in the queue of the machine, as the scheduler would look at them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from drumline.jobs.records import Resources
from drumline.service.routes.multigpu import resources
from drumline.service.state import Service
from tests.service.services import KEYED, add_job, bearer, config, finetune, running

Pair = tuple[TestClient, Service]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Pair]:
    with running(config(tmp_path, access=KEYED)) as pair:
        yield pair


def ask(client: TestClient, headers: dict[str, str], priority: int = 0) -> dict[str, object]:
    made = client.post("/jobs", json=finetune(resources={"devices": 1, "priority": priority}), headers=headers)
    assert made.status_code == 202
    found: dict[str, object] = made.json()
    return found


def test_a_job_says_its_place_while_it_waits(service: Pair) -> None:
    client, opened = service
    ann = bearer(opened, "ann")
    jobs = [ask(client, ann, priority) for priority in (0, 5, 0)]
    assert [job["position"] for job in jobs] == [1, 1, 3]
    detail = [client.get(f"/jobs/{job['id']}", headers=ann) for job in jobs]
    assert [answer.json()["position"] for answer in detail] == [2, 1, 3]
    listed = client.get("/jobs", headers=ann)
    assert [job["position"] for job in listed.json()["items"]] == [3, 1, 2]
    client.post(f"/jobs/{jobs[1]['id']}/cancel", headers=ann)
    assert client.get(f"/jobs/{jobs[1]['id']}", headers=ann).json()["position"] is None
    known = {**ann, "If-None-Match": detail[2].headers["ETag"]}
    assert client.get(f"/jobs/{jobs[2]['id']}", headers=known).json()["position"] == 2


def test_a_training_says_its_place(service: Pair) -> None:
    client, opened = service
    ann = bearer(opened, "ann")
    ask(client, ann)
    body = {"model_name": "tiny", "dataset_config": {"texts": ["a", "b"]}}
    assert client.post("/multigpu/training/auto", json=body, headers=ann).json()["position"] == 2


def test_the_queue_stands_in_the_order_of_the_scheduler(service: Pair) -> None:
    client, opened = service
    ann, bob, admin = bearer(opened, "ann"), bearer(opened, "bob"), bearer(opened, "root", "admin")
    low, high = ask(client, ann, 0), ask(client, bob, 7)
    middle = ask(client, ann, 3)
    add_job(opened, "ann", "running")
    opened.store.jobs.add(
        replace(add_job(opened, "ann", "failed"), id="there", state="queued", ended=None, node="there")
    )
    everything = client.get("/multigpu/resources/status", headers=admin).json()["queue"]
    assert [(job["id"], job["position"]) for job in everything["items"]] == [
        (high["id"], 1),
        (middle["id"], 2),
        (low["id"], 3),
    ]
    mine = client.get("/multigpu/resources/status", headers=ann).json()["queue"]
    assert [(job["id"], job["position"]) for job in mine["items"]] == [(middle["id"], 2), (low["id"], 3)]
    assert mine["total"] == everything["total"] == 3


def test_of_a_long_queue_the_first_are_told(service: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "PAGE", 5)
    client, opened = service
    admin, now = bearer(opened, "root", "admin"), time.time()
    for number in range(8):
        add_job(opened, "ann", id=f"job-{number:03}", queued_since=now - number)
    queue = client.get("/multigpu/resources/status", headers=admin).json()["queue"]
    assert (queue["total"], len(queue["items"])) == (8, 5)
    assert [job["id"] for job in queue["items"][:2]] == ["job-007", "job-006"]


def test_an_admins_priority_is_not_everybodys(service: Pair) -> None:
    client, opened = service
    ann, admin = bearer(opened, "ann"), bearer(opened, "root", "admin")
    body = finetune(resources={"priority": 51})
    refused = client.post("/jobs", json=body, headers=ann)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden") and "50" in refused.json()["detail"]
    training = {"model_name": "tiny", "dataset_config": {"texts": ["a"]}, "resources": {"priority": 51}}
    assert client.post("/multigpu/training/auto", json=training, headers=ann).status_code == 403
    assert client.post("/multigpu/training/config", json=training, headers=ann).status_code == 403
    assert ask(client, ann, 50)["position"] == 1
    assert ask(client, admin, 100)["position"] == 1


def test_an_owner_cannot_have_more_by_doing_an_admins_job_again(service: Pair) -> None:
    client, opened = service
    job = replace(add_job(opened, "ann", "failed"), id="job-urgent", resources=Resources(devices=1, priority=90))
    opened.store.jobs.add(job)
    opened.board.folder(job).mkdir(mode=0o700)
    (opened.board.folder(job) / "rows.jsonl").write_text('{"text": "a"}')
    for headers, priority in ((bearer(opened, "ann"), 50), (bearer(opened, "root", "admin"), 90)):
        again = client.post(f"/jobs/{job.id}/retry", headers=headers)
        assert (again.status_code, again.json()["resources"]["priority"]) == (202, priority)
