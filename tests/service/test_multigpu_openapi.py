"""The OpenAPI document of the /multigpu paths: every path of the table, its problems, and examples of every model."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from drumline.config.service import ServiceConfig
from drumline.service.app import create_app

PATHS = {
    ("get", "/health"),
    ("get", "/config"),
    ("post", "/config"),
    ("get", "/stats"),
    ("get", "/gpu/{gpu_id}/stats"),
    ("post", "/training/dataparallel"),
    ("post", "/training/distributed"),
    ("post", "/training/auto"),
    ("post", "/training/config"),
    ("delete", "/training/config/{config_id}"),
    ("get", "/training/history"),
    ("post", "/resources/manage"),
    ("get", "/resources/status"),
    ("get", "/performance/metrics"),
    ("post", "/gpu/test"),
    ("get", "/gpu/recommendations"),
}


@cache
def document() -> dict[str, Any]:
    return create_app(ServiceConfig()).openapi()


def operations() -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method, path.removeprefix("/multigpu")): operation
        for path, methods in document()["paths"].items()
        if path.startswith("/multigpu/")
        for method, operation in methods.items()
    }


def named(value: Any, seen: set[str]) -> set[str]:
    """Names of all models that a part of the document leads to."""
    if isinstance(value, dict):
        name = str(value.get("$ref", "")).rpartition("/")[2]
        if name and name not in seen:
            seen.add(name)
            named(document()["components"]["schemas"].get(name, {}), seen)
        for inner in value.values():
            named(inner, seen)
    elif isinstance(value, list):
        for inner in value:
            named(inner, seen)
    return seen


def test_every_path_is_there_and_no_other() -> None:
    assert set(operations()) == PATHS


def test_every_path_says_what_it_does_and_which_problems_it_has() -> None:
    for (method, path), operation in operations().items():
        assert operation["description"], path
        statuses = set(operation["responses"])
        assert statuses >= {"204" if method == "delete" else "200", "401", "403", "429", "503"}, path
        assert ("422" in statuses) or method == "get", path
        for status, answer in operation["responses"].items():
            name = answer.get("$ref", "").rpartition("/")[2]
            answer = document()["components"]["responses"][name] if name else answer
            kinds = set(answer.get("content", {}))
            expected = {"application/json"} if status in ("200", "202") else {"application/problem+json"}
            assert kinds == (set() if status in ("204", "304") else expected), (path, status)


def test_every_model_has_a_description_and_examples() -> None:
    schemas = document()["components"]["schemas"]
    mine = named(list(operations().values()), set()) & set(schemas)
    assert {"GPUConfig", "TrainingRequest", "GpuStats", "JobDetail"} <= mine
    without = {name for name in mine if '"example' not in json.dumps(schemas[name])}
    assert without <= {"ResourcesRequest"}  # of the jobs
    assert all(schemas[name].get("description") for name in mine)


def test_a_training_takes_the_fields_that_its_users_know() -> None:
    schemas = document()["components"]["schemas"]
    names = {"model_name", "dataset_config", "training_config", "user_id", "training_type", "gpu_config", "config_id"}
    assert names <= set(schemas["TrainingRequest"]["properties"])
    assert "world_size" in schemas["DistributedRequest"]["properties"]
    assert {"texts", "path", "max_length", "batch_size"} <= set(schemas["DatasetConfig"]["properties"])
