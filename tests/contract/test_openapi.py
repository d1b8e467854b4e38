"""The OpenAPI document: it changes only when that is meant, and says of every route what may come."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from drumline.service.routes.answers import TYPES
from tests.contract.write_openapi import SNAPSHOT, document

PATHS = """
GET /multigpu/health, GET /multigpu/config, POST /multigpu/config, GET /multigpu/stats
GET /multigpu/gpu/{gpu_id}/stats, POST /multigpu/training/dataparallel, POST /multigpu/training/distributed
POST /multigpu/training/auto, POST /multigpu/training/config
DELETE /multigpu/training/config/{config_id}, GET /multigpu/training/history
POST /multigpu/resources/manage, GET /multigpu/resources/status, GET /multigpu/performance/metrics
POST /multigpu/gpu/test, GET /multigpu/gpu/recommendations
GET /jobs, POST /jobs, GET /jobs/{job_id}, POST /jobs/{job_id}/cancel, POST /jobs/{job_id}/retry
GET /jobs/{job_id}/logs, GET /jobs/{job_id}/metrics, GET /jobs/{job_id}/events, GET /jobs/{job_id}/config
GET /jobs/{job_id}/checkpoints, GET /jobs/{job_id}/output, DELETE /jobs/{job_id}/data
GET /audit, GET /keys, POST /keys, DELETE /keys/{key_id}, GET /session, POST /session, DELETE /session
GET /metrics, GET /healthz, GET /readyz
"""
OPEN = {"/healthz", "/readyz"}


@cache
def made() -> dict[str, Any]:
    return document()


def operations() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method.upper()} {path}", operation)
        for path, found in made()["paths"].items()
        for method, operation in found.items()
    ]


def test_it_is_as_it_was_written_down() -> None:
    """If the change is meant: python -m tests.contract.write_openapi."""
    assert made() == json.loads(SNAPSHOT.read_text(encoding="utf-8"))


def test_every_path_of_the_design_is_there() -> None:
    wanted = {path.strip() for line in PATHS.strip().splitlines() for path in line.split(",")}
    assert {name for name, _ in operations()} == wanted


def test_operations_have_clean_ids_and_say_what_they_do() -> None:
    ids = [operation["operationId"] for _, operation in operations()]
    assert len(set(ids)) == len(ids)
    assert [name for name in ids if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or "__" in name] == []
    assert [name for name, operation in operations() if not operation.get("description")] == []


def test_every_refusal_is_declared_with_the_problem_model() -> None:
    for name, operation in operations():
        refusals = {int(status): answer for status, answer in operation["responses"].items() if int(status) >= 400}
        for status, answer in refusals.items():
            answer = _resolved(answer)
            [(kind, content)] = answer["content"].items()
            assert kind == "application/problem+json", (name, status)
            assert content["schema"] == {"$ref": "#/components/schemas/Problem"}, (name, status)
        expected = set() if name.partition(" ")[2] in OPEN else {401, 429, 503}
        expected |= {400, 408, 413, 422} if "requestBody" in operation else set()
        expected |= {422} if "parameters" in operation else set()
        assert expected <= set(refusals), name
    assert "HTTPValidationError" not in made()["components"]["schemas"]


def test_every_answer_has_a_model() -> None:
    for name, operation in operations():
        answers = {status: answer for status, answer in operation["responses"].items() if status.startswith("2")}
        assert len(answers) >= 1, name
        for status, answer in answers.items():
            content = answer.get("content", {})
            if status == "204":
                assert content == {}, name
            elif "application/json" in content:
                assert content["application/json"]["schema"], name
            elif name == "GET /jobs/{job_id}/output":
                assert {kind.partition(";")[0] for kind in TYPES.values()} == set(content) - {"multipart/byteranges"}
            else:
                assert list(content) == ["text/plain"], name


def test_requests_have_examples() -> None:
    for name, operation in operations():
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is not None:
            text = json.dumps([content, *_models(content["schema"])])
            assert '"example' in text, name


def test_all_that_need_a_key_say_so() -> None:
    for name, operation in operations():
        needs = name.partition(" ")[2] not in OPEN and name != "POST /session"
        assert bool(operation.get("security")) == needs, name


def _resolved(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer, wherever it is written down."""
    reference = answer.get("$ref", "")
    found: dict[str, Any] = made()["components"]["responses"][reference.rpartition("/")[2]] if reference else answer
    return found


def _models(schema: Any) -> list[Any]:
    """The models that a schema is of."""
    references = re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(schema))
    return [made()["components"]["schemas"][reference] for reference in references]
