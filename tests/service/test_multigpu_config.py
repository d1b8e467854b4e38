"""The defaults that later trainings take: read, changed in part, kept in versions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from drumline.config.service import SchedulingConfig
from drumline.jobs.records import Inventory, Job
from drumline.jobs.requests import Who
from drumline.jobs.scheduler import Decision, decide
from drumline.service.allowed import Allowed
from drumline.service.state import Service
from tests.service.machines import UUIDS, put_gpus
from tests.service.services import KEYED, bearer, config, finetune, running

Pair = tuple[TestClient, Service]
WHO = Who("local", "admin")
PATH = "/multigpu/config"
CALL = {"use_multi_gpu": True, "gpu_ids": [0, 1, 2, 3], "batch_size_per_gpu": 8, "mixed_precision": True}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Pair]:
    with running(config(tmp_path)) as pair:
        yield pair


def body(**values: Any) -> dict[str, Any]:
    return {"model_name": "tiny", "dataset_config": {"texts": ["one", "two"]}, **values}


def test_the_usual_call_without_gpu(service: Pair) -> None:
    client, _ = service
    before = client.get(PATH).json()
    assert (before["version"], before["config"]["batch_size_per_gpu"], before["changed_at"]) == (0, 8, None)
    after = client.post(PATH, json=CALL)
    assert after.status_code == 200
    assert (after.json()["version"], after.json()["config"]["gpu_ids"]) == (1, [0, 1, 2, 3])
    assert "no GPU" in after.json()["notes"][0]


def test_a_partial_change_keeps_the_rest_and_each_is_a_version(service: Pair) -> None:
    client, opened = service
    client.post(PATH, json={"batch_size_per_gpu": 4, "mixed_precision": False})
    found = client.post(PATH, json={"memory_fraction": 0.5}).json()
    assert (found["version"], found["changed_by"]) == (2, "local")
    values = found["config"]
    assert (values["batch_size_per_gpu"], values["mixed_precision"], values["memory_fraction"]) == (4, False, 0.5)
    assert client.get(PATH).json()["config"] == values
    assert [each.event for each in opened.store.log.audits().items] == ["defaults.set", "defaults.set"]


def test_etags_keep_two_from_overwriting_each_other(service: Pair) -> None:
    client, _ = service
    first = client.get(PATH)
    assert client.get(PATH, headers={"If-None-Match": first.headers["ETag"]}).status_code == 304
    changed = client.post(PATH, json={"batch_size_per_gpu": 2}, headers={"If-Match": first.headers["ETag"]})
    assert changed.status_code == 200
    late = client.post(PATH, json={"batch_size_per_gpu": 3}, headers={"If-Match": first.headers["ETag"]})
    assert (late.status_code, late.json()["code"]) == (412, "precondition")
    assert client.get(PATH).headers["ETag"] == changed.headers["ETag"]
    again = client.post(PATH, json={"batch_size_per_gpu": 3}, headers={"If-Match": changed.headers["ETag"]})
    assert again.json()["version"] == 2


def test_changes_at_the_same_time_keep_each_other(service: Pair) -> None:
    client, _ = service
    changes: list[dict[str, Any]] = [{"batch_size_per_gpu": 3}, {"memory_fraction": 0.4}, {"mixed_precision": False}]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda change: client.post(PATH, json=change), changes))
    assert {answer.status_code for answer in answers} == {200}
    values = client.get(PATH).json()
    assert values["version"] == 3
    assert all(values["config"][name] == value for change in changes for name, value in change.items())


@pytest.mark.parametrize(
    "change",
    [{"batch_size_per_gpu": 0}, {"backend": "mpi"}, {"memory_fraction": 2}, {"gpu_ids": None}, {"unknown": 1}, []],
)
def test_what_cannot_be_meant_is_a_problem_that_says_where(service: Pair, change: Any) -> None:
    client, _ = service
    answer = client.post(PATH, json=change)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert answer.json()["errors"]
    assert client.get(PATH).json()["version"] == 0


def test_gpus_are_kept_by_uuid_and_told_by_number(service: Pair) -> None:
    client, opened = service
    put_gpus(opened)
    found = client.post(PATH, json={"gpu_ids": [1, UUIDS[2], 7]}).json()
    assert (found["config"]["gpu_ids"], found["gpu_uuids"]) == ([1, 2, 7], [UUIDS[1], UUIDS[2]])
    assert "no GPU 7" in found["notes"][0]
    kept = opened.store.settings.latest("defaults")
    assert kept is not None
    assert kept.values["gpu_ids"] == [UUIDS[1], UUIDS[2], 7]
    assert client.get("/multigpu/stats").json()["available_gpus"] == [1, 2]
    nothing = client.post(PATH, json={"gpu_ids": [8, 9]})
    assert (nothing.status_code, nothing.json()["code"]) == (422, "hardware")
    assert UUIDS[0] in nothing.json()["fix"]


def test_later_trainings_take_them_and_earlier_ones_keep_theirs(service: Pair) -> None:
    client, opened = service
    first = client.post("/multigpu/training/auto", json=body()).json()["id"]
    client.post(PATH, json={"batch_size_per_gpu": 2, "mixed_precision": False, "use_multi_gpu": False})
    second = client.post("/multigpu/training/auto", json=body()).json()
    before, after = (opened.board.get(job_id, WHO) for job_id in (first, second["id"]))
    assert (before.work.settings["train.batch_size_per_gpu"], before.resources.devices) == (8, "auto")
    assert "train.precision" not in before.work.settings
    assert (after.work.settings["train.batch_size_per_gpu"], after.resources.devices) == (2, 1)
    assert after.work.settings["train.precision"] == "fp32"


def test_a_job_tells_which_version_it_took_and_that_can_be_read(service: Pair) -> None:
    client, _ = service
    ids = []
    for size in (8, 4, 2):
        if size != 8:
            client.post(PATH, json={"batch_size_per_gpu": size})
        ids.append(client.post("/multigpu/training/auto", json=body()).json()["id"])
    ids.append(client.post("/jobs", json=finetune()).json()["id"])
    plan = client.post("/multigpu/training/config", json=body()).json()["config_id"]
    client.post(PATH, json={"batch_size_per_gpu": 1})
    ids.append(client.post("/multigpu/training/auto", json={"config_id": plan}).json()["id"])
    versions = [client.get(f"/jobs/{job_id}").json()["defaults_version"] for job_id in ids]
    assert versions == [0, 1, 2, 2, 2]
    sizes = [client.get(PATH, params={"version": version}).json() for version in versions]
    assert [found["config"]["batch_size_per_gpu"] for found in sizes] == [8, 4, 2, 2, 2]
    assert [found["version"] for found in sizes] == versions
    missing = client.get(PATH, params={"version": 9})
    assert (missing.status_code, missing.json()["detail"]) == (404, "the defaults have no version 9")
    assert "newest is 3" in missing.json()["fix"]
    assert client.get(PATH, params={"version": -1}).status_code == 422


def test_gpu_ids_limit_jobs_that_wait_already_and_their_reason_names_the_setting(service: Pair) -> None:
    client, opened = service
    put_gpus(opened)
    job = opened.board.get(client.post("/multigpu/training/distributed", json=body(world_size=3)).json()["id"], WHO)
    allowed = Allowed(opened.devices, opened.store)
    assert [start.job_id for start in decided(job, allowed()).starts] == [job.id]
    client.post(PATH, json={"gpu_ids": [0]})
    found = decided(job, Allowed(opened.devices, opened.store)())
    assert found.starts == ()
    assert found.waits[job.id] == (
        f"waits for 3 GPUs: only 1 can be used now ({UUIDS[1]}: gpu_ids of POST /multigpu/config names others, "
        f"{UUIDS[2]}: gpu_ids of POST /multigpu/config names others)"
    )
    # What it named itself before is not given against the limit either.
    own = client.post("/multigpu/training/auto", json=body(gpu_config={"gpu_ids": [1]})).json()["id"]
    waits = decided(opened.board.get(own, WHO), Allowed(opened.devices, opened.store)()).waits[own]
    assert (
        waits.startswith(f"waits for 1 GPU out of {UUIDS[1]}: none can be used now")
        and "POST /multigpu/config" in waits
    )


def decided(job: Job, inventory: Inventory) -> Decision:
    return decide([job], [], inventory, time.time(), SchedulingConfig(), {})


def test_only_an_admin_changes_what_all_take(tmp_path: Path) -> None:
    with running(config(tmp_path, access=KEYED)) as (client, opened):
        user, admin = bearer(opened, "ann"), bearer(opened, "root", "admin")
        assert client.get(PATH).status_code == 401
        refused = client.post(PATH, json={"batch_size_per_gpu": 2}, headers=user)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert client.post(PATH, json={"batch_size_per_gpu": 2}, headers=admin).status_code == 200
        assert client.get(PATH, headers=user).json()["config"]["batch_size_per_gpu"] == 2
