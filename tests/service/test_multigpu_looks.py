"""What is told of the machine: health, GPUs, resources, recommendations; with simulated GPUs and without any."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from drumline.hardware.health import Verdict
from drumline.hardware.records import Snapshot
from drumline.service.machine import Machine
from drumline.service.state import Service
from tests.service.machines import SICK, UUIDS, put_gpus
from tests.service.services import KEYED, add_job, bearer, config, running

Pair = tuple[TestClient, Service]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Pair]:
    with running(config(tmp_path)) as pair:
        yield pair


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Pair]:
    with running(config(tmp_path, access=KEYED)) as pair:
        yield pair


def hold(service: Service, device: str, owner: str = "local") -> str:
    """A running job that has one device."""
    job = add_job(service, owner, "queued")
    with service.store.change() as change:
        (stored,) = [each for each in change.jobs(states={"queued"}) if each.id == job.id]
        change.grant(stored, [device], 1_800_000_000.0, 3600.0)
        change.save(replace(stored, state="running", devices=(device,), attempt=1))
    return job.id


def check(client: TestClient, name: str) -> Any:
    found = {each["name"]: each for each in client.get("/multigpu/health").json()["checks"]}
    return found[name]


def test_without_gpu_the_answers_are_empty_and_say_why(service: Pair) -> None:
    client, opened = service
    assert opened.devices.wait(5.0)
    stats = client.get("/multigpu/stats").json()
    assert (stats["available_gpus"], stats["gpu_info"], stats["gpu_count"], stats["late"]) == ([], [], 0, None)
    assert "no NVIDIA driver" in stats["gpu_source"]
    assert check(client, "driver")["status"] == "ok"
    missing = client.get("/multigpu/gpu/0/stats")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    found = client.get("/multigpu/gpu/recommendations").json()
    assert found["recommended_config"]["backend"] == "gloo"
    tested = client.post("/multigpu/gpu/test", json={"gpu_ids": [0]}).json()
    assert (tested["success"], tested["results"]) == (True, [])
    assert "no GPU to test" in tested["message"]


def test_gpus_with_use_memory_heat_power_and_who_has_them(service: Pair) -> None:
    client, opened = service
    put_gpus(opened, stranger=True, verdicts={UUIDS[2]: SICK}, unusable={UUIDS[2]: "sick: a row cannot be replaced"})
    job_id = hold(opened, UUIDS[0])
    stats = client.get("/multigpu/stats").json()
    first, second, third = stats["gpu_info"]
    assert (first["gpu_utilization"], first["memory_utilization"]) == (25.0, 5.0)
    assert (first["temperature_c"], first["power_w"], first["gpu_id"]) == (50.0, 300.0, 0)
    assert (first["held_by"]["kind"], first["held_by"]["job_id"], first["available"]) == ("job", job_id, False)
    assert second["held_by"]["kind"] == "stranger"
    assert "secret_project" in second["held_by"]["message"]
    assert (third["health"]["status"], third["health"]["findings"][0]["code"]) == ("fail", "rows_failed")
    assert third["unavailable_because"].startswith("sick")
    assert (stats["gpu_count"], stats["power_w"], stats["devices_held"]) == (3, 900.0, 1)


def test_one_gpu_by_index_and_by_uuid(service: Pair) -> None:
    client, opened = service
    put_gpus(opened)
    assert client.get("/multigpu/gpu/1/stats").json()["uuid"] == UUIDS[1]
    assert client.get(f"/multigpu/gpu/{UUIDS[2].lower()}/stats").json()["gpu_id"] == 2
    for name in ("7", "GPU-zzzz", "GPU-"):
        answer = client.get(f"/multigpu/gpu/{name}/stats")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert UUIDS[0] in answer.json()["fix"]


def test_others_do_not_learn_whose_process_or_job_is_on_a_gpu(keyed: Pair) -> None:
    client, opened = keyed
    taken = "taken: process 4711 (python secret_project.py) of mallory computes on it"
    put_gpus(opened, stranger=True, unusable={UUIDS[1]: taken})
    job_id = hold(opened, UUIDS[0], owner="ann")
    bob, root = bearer(opened, "bob"), bearer(opened, "root", "admin")
    for path in ("stats", "gpu/1/stats", "health", "resources/status", "gpu/recommendations"):
        text = client.get(f"/multigpu/{path}", headers=bob).text
        assert "mallory" not in text and "secret_project" not in text and job_id not in text and "ann" not in text, path
    text = client.post("/multigpu/resources/manage", json={"action": "monitor"}, headers=bob).text
    assert "mallory" not in text and job_id not in text
    known = client.get("/multigpu/stats", headers=root).json()["gpu_info"]
    assert known[1]["processes"][0]["user"] == "mallory"
    assert known[0]["held_by"]["owner"] == "ann"


def test_health_says_what_is_degraded_and_why(service: Pair) -> None:
    client, opened = service
    put_gpus(opened, verdicts={UUIDS[2]: SICK}, unusable={UUIDS[2]: "sick: a row cannot be replaced"})
    found = client.get("/multigpu/health").json()
    assert (found["status"], found["gpus"], found["usable_gpus"]) == ("failing", 3, 2)
    assert found["degraded"] == ["supervisor", "gpus"]  # a test's service starts no jobs
    assert "a row cannot be replaced" in check(client, "gpus")["message"]
    opened.store.services.heartbeat("other", opened.node, 1, 4e9)
    assert check(client, "supervisor")["status"] == "ok"
    assert client.get("/multigpu/health").json()["status"] == "degraded"


def test_a_driver_that_hangs_is_told_within_the_limit(service: Pair) -> None:
    client, opened = service
    go = threading.Event()

    def hang() -> Snapshot:
        go.wait()
        return Snapshot(0.0, "late")

    opened.machine.close()
    opened.machine = Machine(0.05, source=hang, verdicts=dict)
    try:
        stats = client.get("/multigpu/stats")
        assert stats.status_code == 200
        assert "has not answered" in stats.json()["late"]
        assert check(client, "driver")["status"] == "degraded"
    finally:
        go.set()


def test_resources_tell_of_devices_leases_queue_and_strangers(service: Pair) -> None:
    client, opened = service
    put_gpus(opened, stranger=True)
    job_id = hold(opened, UUIDS[0])
    add_job(opened, waits_for="waits for 4 GPUs: 2 are free")
    found = client.get("/multigpu/resources/status").json()
    assert [device["id"] for device in found["devices"]] == list(UUIDS)
    assert [(lease["device"], lease["job_id"]) for lease in found["leases"]] == [(UUIDS[0], job_id)]
    assert (found["queue"]["total"], found["queue"]["items"][0]["waits_for"]) == (1, "waits for 4 GPUs: 2 are free")
    assert [stranger["gpu_id"] for stranger in found["strangers"]] == [1]
    assert found["disk"]["free_bytes"] > 0
    assert found["jobs"] == {"queued": 1, "running": 1}


def test_recommendations_leave_out_what_is_sick(service: Pair) -> None:
    client, opened = service
    put_gpus(opened, verdicts={UUIDS[2]: SICK}, unusable={UUIDS[2]: "sick: a row cannot be replaced"})
    found = client.get("/multigpu/gpu/recommendations").json()
    assert (found["recommended_method"], found["usable_gpus"]) == ("distributed", [0, 1])
    assert found["recommended_config"] == {
        "use_multi_gpu": True,
        "backend": "nccl",
        "gpu_ids": [0, 1],
        "mixed_precision": True,
    }
    assert found["reasons"]["method"].startswith("auto: 2 processes")
    assert [each["action"] for each in found["advice"] if each["subject"] == UUIDS[2]] == ["replace it"]
    assert any("billion parameters" in each["message"] for each in found["advice"])


def test_a_gpu_that_a_job_holds_is_not_tested(service: Pair) -> None:
    client, opened = service
    put_gpus(opened, stranger=True)
    for uuid in (UUIDS[0], UUIDS[2]):
        hold(opened, uuid)
    named = client.post("/multigpu/gpu/test", json={"gpu_ids": [0]})
    assert (named.status_code, named.json()["code"]) == (409, "conflict")
    missing = client.post("/multigpu/gpu/test", json={"gpu_ids": [9]})
    assert missing.status_code == 404
    rest = client.post("/multigpu/gpu/test").json()
    assert (rest["tested"], set(rest["skipped"])) == ([], set(UUIDS))


def test_a_viewer_makes_nothing_work_and_cleans_nothing(keyed: Pair) -> None:
    client, opened = keyed
    viewer = bearer(opened, "*", "viewer")
    calls = {"gpu/test": {}, "resources/manage": {"action": "cleanup"}, "config": {"memory_fraction": 0.5}}
    for path, body in calls.items():
        answer = client.post(f"/multigpu/{path}", json=body, headers=viewer)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), path
    assert client.post("/multigpu/resources/manage", json={"action": "monitor"}, headers=viewer).status_code == 200


def test_monitor_of_some_gpus(service: Pair) -> None:
    client, opened = service
    put_gpus(opened, verdicts={uuid: Verdict(uuid, "ok") for uuid in UUIDS})
    hold(opened, UUIDS[1])
    found = client.post("/multigpu/resources/manage", json={"action": "monitor", "gpu_ids": [1, UUIDS[2]]}).json()
    assert [gpu["gpu_id"] for gpu in found["monitor"]["gpus"]["gpu_info"]] == [1, 2]
    assert [job["devices"] for job in found["monitor"]["running"]] == [[UUIDS[1]]]
    missing = client.post("/multigpu/resources/manage", json={"action": "monitor", "gpu_ids": [8]})
    assert missing.status_code == 404
