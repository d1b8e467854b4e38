"""A request with an Idempotency-Key that comes twice is done once, or refused: on no path is the header ignored."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from drumline.service.state import Service
from tests.service.services import KEYED, add_job, bearer, config, finetune, running

Pair = tuple[TestClient, Service]
ONCE = {"Idempotency-Key": "once"}
TRAINING = {"model_name": "tiny", "dataset_config": {"texts": ["a", "b"]}}
DONE_ONCE: dict[str, Any] = {
    "/jobs": finetune(),
    "/jobs/{job_id}/cancel": None,
    "/jobs/{job_id}/retry": None,
    "/multigpu/training/dataparallel": TRAINING,
    "/multigpu/training/distributed": TRAINING,
    "/multigpu/training/auto": TRAINING,
    "/multigpu/training/config": TRAINING,
}
MADE_WITH_NAME: dict[str, tuple[int, str, int]] = {"/multigpu/training/config": (200, "config_id", 1)}
"""Status, the name of what it makes, and how many jobs there are then, where these differ from the others."""
REFUSED: dict[str, Any] = {
    "/session": {"key": "dl_no_such_key"},
    "/multigpu/config": {"memory_fraction": 0.5},
    "/multigpu/resources/manage": {"action": "cleanup"},
    "/multigpu/gpu/test": None,
}
REFUSED_THE_SECOND_TIME = {"/keys"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Pair]:
    with running(config(tmp_path)) as pair:
        yield pair


def test_every_path_that_changes_something_is_one_of_the_three(service: Pair) -> None:
    client, _ = service
    paths = client.get("/openapi.json").json()["paths"]
    posts = {path for path, methods in paths.items() if "post" in methods}
    assert posts == {*DONE_ONCE, *REFUSED, *REFUSED_THE_SECOND_TIME}
    for path in posts:
        names = {each["name"] for each in paths[path]["post"].get("parameters", ())}
        assert ("Idempotency-Key" in names) == (path not in REFUSED), path
        assert "422" in paths[path]["post"]["responses"]


@pytest.mark.parametrize("path", DONE_ONCE)
def test_it_is_done_once(service: Pair, path: str) -> None:
    client, opened = service
    old = add_job(opened, state="queued" if "cancel" in path else "failed")
    (opened.board.folder(old) / "rows.jsonl").write_text('{"text": "a"}')
    answers = [client.post(path.format(job_id=old.id), json=DONE_ONCE[path], headers=ONCE) for _ in range(2)]
    status, name, jobs = MADE_WITH_NAME.get(path, (202, "id", 1 if "cancel" in path else 2))
    assert [answer.status_code for answer in answers] == [status, status]
    assert answers[0].json()[name] == answers[1].json()[name]
    assert client.get("/jobs").json()["total"] == jobs


def test_a_plan_is_made_once_and_under_its_key_no_other_one(tmp_path: Path) -> None:
    path = "/multigpu/training/config"
    with running(config(tmp_path, access=KEYED)) as (client, opened):
        ann, bob = bearer(opened, "ann"), bearer(opened, "bob")
        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(client.post, path, json=TRAINING, headers={**ann, **ONCE}) for _ in range(4)]
        [plan] = {call.result().json()["config_id"] for call in calls}
        assert len(list((tmp_path / "data" / "plans").iterdir())) == 1
        other = client.post(path, json={**TRAINING, "world_size": 1}, headers={**ann, **ONCE})
        assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
        assert plan in other.json()["detail"]
        theirs = client.post(path, json=TRAINING, headers={**bob, **ONCE}).json()["config_id"]
        anew = client.post(path, json=TRAINING, headers=ann).json()["config_id"]
        assert len({plan, theirs, anew}) == 3
        assert sum(audit.event == "plan.keep" for audit in opened.store.log.audits().items) == 3
        for _ in range(2):  # what was started is gone, and is planned anew
            job = client.post("/multigpu/training/auto", json={"config_id": plan}, headers=ann)
            assert job.status_code == 202, job.text
            assert client.post(path, json=TRAINING, headers={**ann, **ONCE}).json()["config_id"] == plan


@pytest.mark.parametrize("path", REFUSED)
def test_a_path_that_would_ignore_it_refuses_it(service: Pair, path: str) -> None:
    client, opened = service
    answer = client.post(path, json=REFUSED[path], headers=ONCE)
    assert (answer.status_code, answer.json()["code"]) == (422, "config")
    assert "Idempotency-Key" in answer.json()["detail"] and opened.store.log.audits().total == 0


def test_a_key_whose_answer_was_lost_is_named_and_its_secret_is_told_to_nobody_again(tmp_path: Path) -> None:
    with running(config(tmp_path, access=KEYED)) as (client, opened):
        admin, other = bearer(opened, "root", "admin"), bearer(opened, "eve", "admin")
        made = client.post("/keys", json={"owner": "ann"}, headers={**admin, **ONCE})
        assert made.status_code == 201
        for body in ({"owner": "ann"}, {"owner": "bob", "role": "admin"}):
            again = client.post("/keys", json=body, headers={**admin, **ONCE})
            assert (again.status_code, again.json()["code"]) == (409, "idempotency_conflict")
            assert made.json()["id"] in again.json()["detail"] and made.json()["key"] not in again.text
            assert f"DELETE /keys/{made.json()['id']}" in again.json()["fix"]
        assert len(opened.store.keys.list("ann")) == 1 and not opened.store.keys.list("bob")
        theirs = client.post("/keys", json={"owner": "ann"}, headers={**other, **ONCE})
        assert theirs.status_code == 201 and theirs.json()["id"] != made.json()["id"]
        anew = [client.post("/keys", json={"owner": "ann"}, headers=admin).status_code for _ in range(2)]
        assert anew == [201, 201]
        assert client.delete(f"/keys/{made.json()['id']}", headers=admin).status_code == 204
        assert client.post("/keys", json={"owner": "ann"}, headers={**admin, **ONCE}).status_code == 409


def test_what_is_removed_twice_is_gone_all_the_same(service: Pair) -> None:
    client, opened = service
    job = add_job(opened, state="failed")
    assert [client.delete(f"/jobs/{job.id}/data", headers=ONCE).status_code for _ in range(2)] == [204, 204]
