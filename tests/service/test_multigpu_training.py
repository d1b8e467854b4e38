"""Trainings that are asked for under /multigpu, in the fields that its users know."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from drumline.config.service import SchedulingConfig
from drumline.jobs.records import Job
from drumline.jobs.requests import Who
from drumline.jobs.scheduler import decide
from drumline.service.state import Service
from tests.service.machines import UUIDS, put_gpus
from tests.service.services import KEYED, bearer, config, running

Pair = tuple[TestClient, Service]
ADMIN = Who("local", "admin")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Pair]:
    with running(config(tmp_path, limits={"max_wait_s": 5.0})) as pair:
        yield pair


def body(**values: Any) -> dict[str, Any]:
    """The usual call."""
    return {
        "model_name": "tiny",
        "dataset_config": {"texts": ["sample text 1", "sample text 2"], "max_length": 512},
        "training_config": {"epochs": 3, "learning_rate": 5e-5},
        "user_id": 123,
        **values,
    }


def start(pair: Pair, method: str, **values: Any) -> Job:
    client, opened = pair
    answer = client.post(f"/multigpu/training/{method}", json=body(**values))
    assert answer.status_code == 202, answer.text
    return opened.board.get(answer.json()["training_id"], ADMIN)


def refused(pair: Pair, method: str, **values: Any) -> Any:
    answer = pair[0].post(f"/multigpu/training/{method}", json=body(**values))
    assert answer.status_code == 422, answer.text
    return answer.json()


def test_the_usual_call_answers_at_once(service: Pair) -> None:
    client, opened = service
    answer = client.post("/multigpu/training/dataparallel", json=body(training_type="dataparallel"))
    assert answer.status_code == 202
    told = answer.json()
    assert (told["status"], told["user_id"], told["training_type"]) == ("queued", "123", "dataparallel")
    assert answer.headers["Location"] == told["links"]["self"] == f"/jobs/{told['training_id']}"
    job = opened.board.get(told["training_id"], ADMIN)
    assert (job.work.parallel, job.work.model_name, job.work.export) == ("data_parallel", "tiny", True)
    assert job.work.settings == {
        "data.context": 512,
        "train.batch_size_per_gpu": 8,
        "train.gradient_accumulation_steps": 1,
        "train.epochs": 3,
        "train.lr": 5e-5,
    }
    assert (opened.board.folder(job) / "rows.jsonl").read_text().count("sample text") == 2


@pytest.mark.parametrize(
    ("method", "values", "parallel", "devices"),
    [
        ("auto", {}, "auto", "auto"),
        ("dataparallel", {}, "data_parallel", 1),
        ("distributed", {}, "distributed", "auto"),
        ("distributed", {"world_size": 4}, "distributed", 4),
        ("auto", {"resources": {"devices": 2, "priority": 5}}, "auto", 2),
        ("auto", {"gpu_config": {"distributed_training": True}}, "distributed", "auto"),
        ("auto", {"gpu_config": {"use_multi_gpu": False}}, "auto", 1),
        ("auto", {"training_config": {"use_multi_gpu": False}}, "auto", 1),
        ("distributed", {"world_size": 2, "resources": {"priority": 5}}, "distributed", 2),
    ],
)
def test_how_it_is_spread(service: Pair, method: str, values: dict[str, Any], parallel: str, devices: object) -> None:
    job = start(service, method, **values)
    assert (job.work.parallel, job.resources.devices) == (parallel, devices)
    assert job.resources.priority == values.get("resources", {}).get("priority", 0)


def test_on_gpus_it_has_as_many_as_it_names_and_a_share_of_their_memory(service: Pair) -> None:
    put_gpus(service[1])
    job = start(service, "dataparallel", gpu_config={"gpu_ids": [2, 0], "backend": "gloo", "memory_fraction": 0.8})
    assert (job.resources.devices, job.resources.gpus) == (2, (UUIDS[2], UUIDS[0]))
    assert job.work.settings["hardware.memory_fraction"] == 0.8
    assert job.work.settings["parallel.backend"] == "gloo"


@pytest.mark.parametrize(
    ("method", "values", "devices"),
    [
        ("auto", {"gpu_config": {"gpu_ids": [1, "GPU-cccc"], "use_multi_gpu": False}}, 1),
        ("distributed", {"gpu_config": {"gpu_ids": [1, 2]}, "world_size": 2}, 2),
        ("auto", {"gpu_config": {"gpu_ids": ["1", 2]}, "resources": {"devices": 1}}, 1),
        ("auto", {"resources": {"gpus": [UUIDS[1], UUIDS[2]], "devices": "auto"}}, "auto"),
    ],
)
def test_gpus_that_it_names_are_the_only_ones_that_it_may_have(
    service: Pair, method: str, values: dict[str, Any], devices: object
) -> None:
    put_gpus(service[1])
    job = start(service, method, **values)
    assert (job.resources.devices, job.resources.gpus) == (devices, UUIDS[1:])
    told = service[0].get(f"/jobs/{job.id}").json()
    assert told["resources"]["gpus"] == list(UUIDS[1:])
    decision = decide([job], [], service[1].devices(), time.time(), SchedulingConfig(), {})
    assert set(decision.starts[0].devices) <= set(UUIDS[1:])


@pytest.mark.parametrize(
    ("values", "says", "fix"),
    [
        ({"gpu_config": {"gpu_ids": [0, 7]}}, "this machine has no GPU 7", "0 (GPU-aaaa1111), 1 (GPU-bbbb2222)"),
        ({"gpu_config": {"gpu_ids": ["GPU-dddd"]}}, "this machine has no GPU GPU-dddd", "choose from"),
        ({"gpu_config": {"gpu_ids": [0, UUIDS[0]]}}, "gpu_ids names 0 twice", "once"),
        ({"gpu_config": {"gpu_ids": [0]}, "resources": {"gpus": [UUIDS[1]]}}, "both name GPUs", "one of the two"),
        ({"gpu_config": {"gpu_ids": [0]}, "world_size": 2}, "asks for 2 devices, and gpus names 1", "fewer"),
    ],
)
def test_gpus_that_cannot_be_had_are_refused(service: Pair, values: dict[str, Any], says: str, fix: str) -> None:
    put_gpus(service[1])
    problem = refused(service, "distributed", **values)
    assert says in problem["detail"] and fix in problem["fix"]


@pytest.mark.parametrize(
    ("values", "settings"),
    [
        ({"training_config": {"batch_size_per_gpu": 2}}, {"train.batch_size_per_gpu": 2}),
        ({"training_config": {"batch_size": 6}}, {"train.global_batch": 6, "train.batch_size_per_gpu": None}),
        (
            {"dataset_config": {"texts": ["x"], "batch_size": 6}},
            {"train.global_batch": 6, "train.batch_size_per_gpu": None},
        ),
        ({"gpu_config": {"mixed_precision": False}}, {"train.precision": "fp32"}),
        ({"gpu_config": {"batch_size_per_gpu": 3}}, {"train.batch_size_per_gpu": 3}),
        (
            {"gpu_config": {"batch_size_per_gpu": 3}, "training_config": {"batch_size_per_gpu": 5}},
            {"train.batch_size_per_gpu": 5},
        ),
        ({"training_config": {"train.schedule.name": "linear"}}, {"train.schedule.name": "linear"}),
        (
            {"resources": {"min_devices": 1, "max_devices": 2}},
            {"train.batch_size_per_gpu": None, "train.gradient_accumulation_steps": None},
        ),
        ({"training_config": {"sync_batch_norm": True, "backend": "nccl"}}, {"parallel.backend": None}),
    ],
)
def test_what_its_settings_come_to(service: Pair, values: dict[str, Any], settings: dict[str, Any]) -> None:
    job = start(service, "auto", **values)
    assert {name: job.work.settings.get(name) for name in settings} == settings


@pytest.mark.parametrize(
    ("method", "values", "says"),
    [
        ("auto", {"training_type": "distributed"}, "training_type is distributed"),
        ("auto", {"model_name": None}, "model_name is missing"),
        ("auto", {"dataset_config": None}, "dataset_config is missing"),
        ("auto", {"dataset_config": {}}, "texts or from path"),
        ("auto", {"training_config": {"learnin_rate": 1}}, "learnin_rate"),
        ("auto", {"training_config": {"batch_size": 8, "batch_size_per_gpu": 2}}, "batch_size and batch_size_per_gpu"),
        ("dataparallel", {"training_config": {"parallel": {"kind": "ddp"}}}, "says parallel.kind itself"),
        ("distributed", {"world_size": 4, "resources": {"devices": 2}}, "world_size is 4"),
        ("distributed", {"world_size": 0}, "world_size"),
        ("auto", {"world_size": 4}, "world_size"),
        ("auto", {"gpu_config": {"gpu_ids": [0]}}, "this machine has no GPU 0"),
        ("auto", {"gpu_config": {"memory_fraction": 7}}, "memory_fraction"),
        ("auto", {"model_name": "/etc"}, "/etc"),
        ("auto", {"dataset_config": {"path": "/etc/passwd"}}, "passwd"),
    ],
)
def test_what_cannot_be_meant_is_refused(service: Pair, method: str, values: dict[str, Any], says: str) -> None:
    problem = refused(service, method, **values)
    assert says in problem["detail"]
    assert service[1].store.jobs.counts() == {}


def test_the_same_request_twice_is_one_training(service: Pair) -> None:
    client, opened = service
    headers = {"Idempotency-Key": "once"}
    ids = {client.post("/multigpu/training/auto", json=body(), headers=headers).json()["id"] for _ in range(3)}
    assert len(ids) == 1
    other = client.post("/multigpu/training/auto", json=body(user_id=5), headers=headers)
    assert other.status_code == 409
    elsewhere = client.post("/multigpu/training/distributed", json=body(), headers=headers)
    assert elsewhere.status_code == 409
    assert opened.store.jobs.counts() == {"queued": 1}


def test_a_call_that_waits_comes_back_with_the_end(service: Pair) -> None:
    client, opened = service
    answers: list[Any] = []
    thread = threading.Thread(
        target=lambda: answers.append(client.post("/multigpu/training/auto?wait=true", json=body()))
    )
    thread.start()
    limit = time.monotonic() + 5
    while opened.store.jobs.counts().get("queued", 0) == 0 and time.monotonic() < limit:
        time.sleep(0.01)
    (job,) = client.get("/jobs").json()["items"]
    client.post(job["links"]["cancel"])
    thread.join(5)
    (answer,) = answers
    assert answer.status_code == 200
    assert (answer.json()["id"], answer.json()["status"], answer.json()["success"]) == (job["id"], "cancelled", False)
    assert answer.json()["training_history"] == []
    assert opened.streams.num_open == 0


def test_a_call_that_waits_ends_with_its_key(tmp_path: Path) -> None:
    with running(config(tmp_path, access=KEYED, limits={"max_wait_s": 5.0})) as (client, opened):
        headers = bearer(opened, "ann")
        answers: list[int] = []

        def call() -> None:
            path = "/multigpu/training/auto?wait=true"
            answers.append(client.post(path, json=body(), headers=headers).status_code)

        thread = threading.Thread(target=call)
        thread.start()
        limit = time.monotonic() + 5
        while opened.store.jobs.counts().get("queued", 0) == 0 and time.monotonic() < limit:
            time.sleep(0.01)
        (key,) = opened.store.keys.list("ann")
        opened.store.keys.revoke(key.id, time.time())
        thread.join(20)  # it ends in any case after max_wait_s, then with 202
        assert answers == [401]
        assert opened.store.jobs.counts() == {"queued": 1} and opened.streams.num_open == 0


def test_a_call_that_waits_too_long_says_how_far_it_is(tmp_path: Path) -> None:
    with running(config(tmp_path, limits={"max_wait_s": 0.05})) as (client, _):
        answer = client.post("/multigpu/training/auto?wait=true", json=body())
        assert (answer.status_code, answer.json()["status"]) == (202, "queued")


def test_a_plan_is_kept_and_started_by_its_id(service: Pair) -> None:
    client, opened = service
    plan = client.post("/multigpu/training/config", json=body(world_size=2, gpu_config={"batch_size_per_gpu": 3}))
    assert plan.status_code == 200
    told = plan.json()
    assert (told["method"], told["settings"]["train.batch_size_per_gpu"]) == ("distributed", 3)
    assert told["links"]["start"] == "/multigpu/training/distributed"
    client.post("/multigpu/config", json={"batch_size_per_gpu": 1})  # what was planned stays
    started = client.post(told["links"]["start"], json={"config_id": told["config_id"], "user_id": "ann"})
    assert started.status_code == 202, started.text
    job = opened.board.get(started.json()["id"], ADMIN)
    assert (job.user_id, job.resources.devices, job.work.settings["train.batch_size_per_gpu"]) == ("ann", 2, 3)
    assert (opened.board.folder(job) / "rows.jsonl").read_text().count("sample text") == 2


def test_a_plan_leaves_no_second_copy_of_its_texts(service: Pair) -> None:
    client, opened = service
    plan = client.post("/multigpu/training/config", json=body()).json()["config_id"]
    [folder] = (opened.config.data_dir / "plans").iterdir()
    assert (folder / "rows.jsonl").is_file()
    once = {"Idempotency-Key": "once"}
    started = client.post("/multigpu/training/auto", json={"config_id": plan}, headers=once)
    assert (started.status_code, folder.exists()) == (202, False)
    again = client.post("/multigpu/training/auto", json={"config_id": plan}, headers=once)
    assert (again.status_code, again.json()["id"]) == (202, started.json()["id"])
    other = client.post("/multigpu/training/auto", json={"config_id": plan, "user_id": "x"}, headers=once)
    assert other.status_code == 409
    assert client.post("/multigpu/training/auto", json={"config_id": plan}).status_code == 404


def test_a_request_counts_before_what_is_set_for_all(service: Pair) -> None:
    client, opened = service
    put_gpus(opened)
    for_all = {"mixed_precision": False, "backend": "gloo", "distributed_training": True, "use_multi_gpu": False}
    assert client.post("/multigpu/config", json=for_all).status_code == 200
    own = {"mixed_precision": True, "backend": "nccl", "distributed_training": False, "use_multi_gpu": True}
    plan = client.post("/multigpu/training/config", json=body(gpu_config=own, training_type="auto"))
    by_plan = client.post("/multigpu/training/auto", json={"config_id": plan.json()["config_id"]}).json()["id"]
    for job in (start(service, "auto", gpu_config=own), opened.board.get(by_plan, ADMIN)):
        assert not {"train.precision", "parallel.backend"} & set(job.work.settings)
        assert (job.work.parallel, job.resources.devices) == ("auto", "auto")
    assert start(service, "auto").work.settings["parallel.backend"] == "gloo"


def test_settings_alone_can_be_planned_and_meet_their_data_later(service: Pair) -> None:
    client, opened = service
    plan = client.post("/multigpu/training/config", json={"training_config": {"epochs": 7}}).json()
    data = {"model_name": "tiny", "dataset_config": {"texts": ["later"], "max_length": 9}}
    started = client.post("/multigpu/training/auto", json={"config_id": plan["config_id"], **data})
    assert started.status_code == 202, started.text
    job = opened.board.get(started.json()["id"], ADMIN)
    assert (job.work.settings["train.epochs"], job.work.settings["data.context"]) == (7, 9)


def test_a_plan_is_not_changed_by_its_start(service: Pair) -> None:
    client, _ = service
    plan = client.post("/multigpu/training/config", json=body()).json()["config_id"]
    more = {"training_config": {"epochs": 1}}
    answer = client.post("/multigpu/training/auto", json={"config_id": plan, **more})
    assert (answer.status_code, "training_config" in answer.json()["detail"]) == (422, True)
    elsewhere = client.post("/multigpu/training/distributed", json={"config_id": plan})
    assert (elsewhere.status_code, "planned for training/auto" in elsewhere.json()["detail"]) == (422, True)
    assert client.post("/multigpu/training/auto", json={"config_id": "plan-none"}).status_code == 404


def test_a_plan_is_its_owners(tmp_path: Path) -> None:
    with running(config(tmp_path, access=KEYED)) as (client, opened):
        ann, bob, viewer = bearer(opened, "ann"), bearer(opened, "bob"), bearer(opened, "*", "viewer")
        plan = client.post("/multigpu/training/config", json=body(), headers=ann).json()["config_id"]
        stolen = client.post("/multigpu/training/auto", json={"config_id": plan}, headers=bob)
        assert (stolen.status_code, stolen.json()["code"]) == (404, "not_found")
        for path in ("auto", "config"):
            assert client.post(f"/multigpu/training/{path}", json=body(), headers=viewer).status_code == 403


def test_the_texts_of_a_plan_are_removed_by_its_owner(tmp_path: Path) -> None:
    with running(config(tmp_path, access=KEYED)) as (client, opened):
        ann, bob, viewer = bearer(opened, "ann"), bearer(opened, "bob"), bearer(opened, "*", "viewer")
        plan = client.post("/multigpu/training/config", json=body(), headers=ann).json()["config_id"]
        [texts] = (opened.config.data_dir / "plans").iterdir()
        one = f"/multigpu/training/config/{plan}"
        statuses = [client.delete(one, headers=who).status_code for who in (bob, viewer)]
        assert statuses == [404, 403] and texts.is_dir()
        gone = client.delete(one, headers=ann)
        assert (gone.status_code, gone.content, texts.exists()) == (204, b"", False)
        assert client.delete(one, headers=ann).status_code == 404  # nothing of it is left
        started = client.post("/multigpu/training/auto", json={"config_id": plan}, headers=ann)
        assert (started.status_code, started.json()["code"]) == (404, "not_found")
        for name, status in (("plan-none", 404), ("..%2f..", 404), ("a%00", 422)):
            assert client.delete(f"/multigpu/training/config/{name}", headers=ann).status_code == status
