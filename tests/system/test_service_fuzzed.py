"""Requests made up from the OpenAPI document: no error of the service's own, and no answer that is not declared.

Their ids are mostly those of jobs, keys, plans and GPUs that are there. A short set runs here; the long one by hand:
SERVICE_FUZZ=500 is the number of requests an operation, and `pytest -s` shows what was answered.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as some
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from drumline.jobs.requests import Role
from drumline.service.new_keys import new_key
from tests.service.servers import LIMIT_S, Served, served
from tests.system.fuzzed_service import SERVE, Real, with_model

pytestmark = pytest.mark.system

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = int(os.environ.get("SERVICE_FUZZ", "6"))
HOW = settings(
    derandomize=True,
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
Answers = Counter[tuple[str, int]]
"""(operation, status) -> how often."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("fuzzed")
    limits = {"max_wait_s": 0.1, "gpu_operation_s": 1.0, "gpu_test_s": 1.0, "max_queued": 1_000_000}
    with served(folder, SERVE, limits=limits, files=with_model(folder)) as found:
        yield found


@pytest.fixture(scope="module")
def api(server: Served) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.fixture(scope="module")
def real(server: Served) -> Real:
    return Real(server)


def _fuzz(api: Any, real: Real, headers: Mapping[str, str], how: settings = HOW) -> Answers:
    """Ask for every operation with made-up values about what is there; what was answered."""
    answers: Answers = Counter()
    failures: list[Exception] = []
    for found in api.get_all_operations():
        operation = found.ok()

        @how
        @given(case=operation.as_strategy(), data=some.data())
        def ask_all(case: Any, data: Any) -> None:
            beside = real.put_into(case, data.draw)
            answer = case.call_and_validate(checks=CHECKS, headers={**headers, **beside}, timeout=LIMIT_S)
            answers[case.operation.label, answer.status_code] += 1

        try:
            ask_all()
        except Exception as failure:  # the other operations are asked all the same
            failures.append(failure)
    for (name, status), count in sorted(answers.items()):
        print(f"{name:50} {status} {count:6}")
    if failures:
        raise ExceptionGroup(f"{len(failures)} operations did what they should not", failures)
    return answers


def _with_key(server: Served, owner: str, role: Role) -> dict[str, str]:
    secret, key = new_key(owner, role, time.time())
    server.store.keys.add(key)
    return {"Authorization": f"Bearer {secret}"}


def _statuses(answers: Answers, operation: str) -> set[int]:
    """Of this operation, and of those below it."""
    return {status for name, status in answers if name.startswith(operation)}


def test_as_the_machines_own_user(api: Any, real: Real) -> None:
    answers = _fuzz(api, real, {})
    assert answers.total() > 200
    for operation in ("GET /jobs/{job_id}", "GET /jobs/{job_id}/metrics", "GET /multigpu/gpu/{gpu_id}/stats"):
        assert 200 in _statuses(answers, operation), "no real id was drawn"


def test_with_an_admins_key(api: Any, real: Real, server: Served) -> None:
    answers = _fuzz(api, real, _with_key(server, "root", "admin"))
    assert 202 in _statuses(answers, "POST /jobs") and 204 in _statuses(answers, "DELETE /keys/{key_id}")


def test_with_a_users_key(api: Any, real: Real, server: Served) -> None:
    """Of what is others' it is told that it is not there."""
    answers = _fuzz(api, real, _with_key(server, "local", "user"))
    assert {200, 404} <= _statuses(answers, "GET /jobs/{job_id}")
    assert 403 in _statuses(answers, "GET /keys") and 200 not in _statuses(answers, "GET /keys")


def test_from_elsewhere_without_a_key(api: Any, real: Real) -> None:
    answers = _fuzz(api, real, {"X-Forwarded-For": "192.0.2.1"}, settings(HOW, max_examples=max(1, EXAMPLES // 6)))
    open_to_all = ("/healthz", "/readyz", "/session")
    others = {status for name, status in answers if name.split()[1] not in open_to_all}
    assert others == {401} and answers.total() > 30
