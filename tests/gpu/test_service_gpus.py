"""What the service tells of real GPUs: stats, health, recommendations, and a short test of one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from drumline.service.state import Service
from tests.service.services import config, running

pytestmark = pytest.mark.gpu


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[TestClient, Service]]:
    with running(config(tmp_path)) as (client, opened):
        assert opened.devices.wait(60.0)
        yield client, opened


def test_every_gpu_has_its_numbers(service: tuple[TestClient, Service]) -> None:
    client, opened = service
    stats = client.get("/multigpu/stats").json()
    assert (stats["gpu_count"] >= 1, stats["late"]) == (True, None)
    assert {gpu["uuid"] for gpu in stats["gpu_info"]} >= {device.id for device in opened.devices().devices}
    for gpu in stats["gpu_info"]:
        assert 0 <= gpu["memory_utilization"] <= 100 and 0 <= gpu["gpu_utilization"] <= 100
        assert gpu["temperature_c"] > 0 and gpu["power_w"] > 0
        assert gpu["health"]["status"] in ("ok", "warn", "fail")
        assert client.get(f"/multigpu/gpu/{gpu['uuid']}/stats").json()["name"] == gpu["name"]


def test_health_and_recommendations_know_the_gpus(service: tuple[TestClient, Service]) -> None:
    client, _ = service
    health = client.get("/multigpu/health").json()
    assert {check["name"]: check["status"] for check in health["checks"]}["driver"] == "ok"
    found = client.get("/multigpu/gpu/recommendations").json()
    assert found["recommended_config"]["use_multi_gpu"] == (len(found["usable_gpus"]) > 1)
    assert any("billion parameters" in each["message"] for each in found["advice"])


def test_one_gpu_is_tested_within_its_limit(service: tuple[TestClient, Service]) -> None:
    client, _ = service
    free = client.get("/multigpu/stats").json()["available_gpus"]
    assert free, "no GPU is free"
    found = client.post("/multigpu/gpu/test", json={"gpu_ids": free[:1], "limit_s": 60}).json()
    assert (found["success"], len(found["tested"])) == (True, 1), found
    assert {"memory", "product"} <= {result["name"] for result in found["results"]}
    assert found["seconds"] < 75
