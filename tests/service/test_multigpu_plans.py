"""What a plan says before model and data were looked at, and that it is started once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from drumline.jobs.plans import Planned
from drumline.jobs.requests import Who
from drumline.service.routes.multigpu import planning
from drumline.service.state import Service
from tests.service.machines import GIB, UUIDS, put_gpus
from tests.service.services import config, running

Pair = tuple[TestClient, Service]
PATH = "/multigpu/training/config"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Pair]:
    with running(config(tmp_path, scheduling={"cpu_slots": 3})) as pair:
        yield pair


def body(**values: Any) -> dict[str, Any]:
    return {"model_name": "tiny", "dataset_config": {"texts": ["one", "two"]}, **values}


def planned(service: Pair, **values: Any) -> Any:
    answer = service[0].post(PATH, json=body(**values))
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("values", "plan"),
    [
        ({}, {"kind": "ddp", "gpus": list(UUIDS), "world_size": 3, "global_batch": 24}),
        ({"world_size": 2}, {"kind": "ddp", "gpus": list(UUIDS[:2]), "world_size": 2, "global_batch": 16}),
        ({"gpu_config": {"gpu_ids": [2]}}, {"kind": "single", "gpus": [UUIDS[2]], "global_batch": 8}),
        (
            {"training_type": "dataparallel", "training_config": {"gradient_accumulation_steps": 2}},
            {"kind": "data_parallel", "world_size": 1, "num_shards": 3, "global_batch": 48},
        ),
        (
            {"training_config": {"batch_size": 10, "parallel": {"kind": "fsdp"}}},
            {"kind": "fsdp", "world_size": 3, "global_batch": 10},
        ),
        (
            {"resources": {"min_devices": 1, "max_devices": 2}, "training_config": {"batch_size": 10}},
            {"kind": "ddp", "gpus": list(UUIDS[:2]), "world_size": 2, "global_batch": 10},
        ),
        ({"resources": {"min_devices": 2, "max_devices": 9}}, {"kind": "ddp", "world_size": 3}),
    ],
)
def test_kind_devices_and_batch_are_told_without_a_look_at_the_model(
    service: Pair, values: dict[str, Any], plan: dict[str, Any]
) -> None:
    put_gpus(service[1])
    told = planned(service, **values)
    assert {name: told["plan"][name] for name in plan} == plan
    assert ("global_batch" in told["plan"]) == ("global_batch" in plan)
    assert set(told["reasons"]) <= {f"plan.{name}" for name in told["plan"]} and told["reasons"]["plan.kind"]
    notes = "\n".join(told["notes"])
    assert "?closer=true" in notes
    assert ("the global batch is chosen by model and data" in notes) == ("global_batch" not in plan)
    resources = values.get("resources", {})
    assert ("by turns" in notes) == ("min_devices" in resources)


def test_without_gpu_it_is_planned_on_processes(service: Pair) -> None:
    service[1].devices.wait(20)
    plan = planned(service, world_size=2)["plan"]
    assert (plan["device"], plan["world_size"], plan["gpus"], plan["global_batch"]) == ("cpu", 2, [], 16)
    assert planned(service)["plan"]["world_size"] == 3


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"resources": {"devices": 2, "memory_bytes": 61 * GIB}}, "needs 2 devices, and of those that suit it 0"),
        ({"world_size": 3}, "needs 3 devices, and of those that suit it 2"),
        ({"gpu_config": {"gpu_ids": [2]}}, "needs 1 device, and of those that suit it 0"),
    ],
)
def test_what_could_not_start_now_has_no_plan_and_says_so(service: Pair, values: dict[str, Any], says: str) -> None:
    put_gpus(service[1], unusable={UUIDS[2]: "sick"})
    told = planned(service, **values)
    assert told["plan"] is None and any(says in note for note in told["notes"])


def test_only_gpus_with_the_memory_that_it_asks_for_are_counted(service: Pair) -> None:
    put_gpus(service[1])
    assert planned(service, resources={"memory_bytes": 60 * GIB})["plan"]["world_size"] == 3
    assert planned(service, resources={"memory_bytes": 61 * GIB})["plan"] is None


def test_requests_at_the_same_time_start_a_plan_once(service: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    client, opened = service
    plan = client.post(PATH, json=body()).json()["config_id"]
    together, read = threading.Barrier(4), opened.board.planned

    def read_together(plan_id: str, who: Who) -> Planned:
        found = read(plan_id, who)
        together.wait(20)  # the worst moment: all have read it, and none has begun
        return found

    monkeypatch.setattr(opened.board, "planned", read_together)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(client.post, "/multigpu/training/auto", json={"config_id": plan}) for _ in range(4)]
        answers = [call.result() for call in calls]
    assert sorted(answer.status_code for answer in answers) == [202, 404, 404, 404]
    assert {answer.json()["fix"] for answer in answers if answer.status_code == 404} == {"plan it again"}
    assert opened.store.jobs.counts() == {"queued": 1}


def test_the_same_call_at_the_same_time_has_the_same_answer(service: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    client, opened = service
    plan = client.post(PATH, json=body()).json()["config_id"]
    read, once = opened.board.planned, {"Idempotency-Key": "once"}

    def read_late(plan_id: str, who: Who) -> Planned:
        monkeypatch.setattr(opened.board, "planned", read)
        first.append(client.post("/multigpu/training/auto", json={"config_id": plan}, headers=once).json()["id"])
        return read(plan_id, who)

    first: list[str] = []
    monkeypatch.setattr(opened.board, "planned", read_late)
    second = client.post("/multigpu/training/auto", json={"config_id": plan}, headers=once)
    assert (second.status_code, second.json()["id"]) == (202, first[0])
    assert opened.store.jobs.counts() == {"queued": 1}


def test_a_plan_that_another_machine_keeps_is_refused_here(tmp_path: Path) -> None:
    with running(config(tmp_path)) as (client, opened):
        plan = client.post(PATH, json=body()).json()["config_id"]
        kept = opened.store.settings.get("plan", plan)
        assert kept is not None
        opened.store.settings.remove(kept)
        theirs = {**kept.values, "node": "far", "folder": "theirs"}
        opened.store.settings.put("plan", theirs, kept.by, document_id=plan)
        answers = [client.delete(f"{PATH}/{plan}")]
        answers.append(client.post("/multigpu/training/auto", json={"config_id": plan}))
        for answer in answers:
            assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
            assert answer.json()["detail"] == f"the texts of {plan} lie on far"


def test_a_plan_whose_closer_look_is_refused_is_not_kept(service: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    client, opened = service
    once = {"Idempotency-Key": "once"}
    told = client.post(PATH, json=body(), headers=once).json()["config_id"]
    plans = opened.config.data_dir / "plans"
    before = list(plans.iterdir())
    monkeypatch.setattr(planning, "MOST_LOOKS", 0)
    for headers in ({}, once, {"Idempotency-Key": "another"}):
        assert client.post(f"{PATH}?closer=true", json=body(), headers=headers).status_code == 503
        assert list(plans.iterdir()) == before
    assert client.post("/multigpu/training/auto", json={"config_id": told}).status_code == 202  # somebody knows of it
