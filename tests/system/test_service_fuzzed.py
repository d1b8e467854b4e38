"""Requests made up from the OpenAPI document: no error of the service's own, and no answer that is not declared."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from drumline.service.new_keys import new_key
from tests.service.servers import LIMIT_S, Served, served

pytestmark = pytest.mark.system

SERVE = """
import sys
import uvicorn
from drumline.config.service import ServiceConfig
from drumline.service.app import create_app
from drumline.service.opening import open_service
from drumline.service.serving import listening, settings
config = ServiceConfig.model_validate_json(sys.argv[1])
app = create_app(config, opener=lambda given: open_service(given, supervise=False))
listener = listening(config.host, config.port)
print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
uvicorn.Server(uvicorn.Config(app, **settings(config))).run(sockets=[listener])
"""
"""Nobody starts the jobs that are asked for."""

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
BRIEFLY = settings(
    derandomize=True,
    max_examples=6,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("fuzzed")
    limits = {"max_wait_s": 0.1, "gpu_operation_s": 1.0, "gpu_test_s": 1.0}
    with served(folder, SERVE, limits=limits) as found:
        yield found


@pytest.fixture(scope="module")
def api(server: Served) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def _fuzz(api: Any, how: settings, ask: Callable[[Any], None]) -> int:
    """Ask for every operation with made-up values; returns how many requests that were."""
    asked = 0
    for found in api.get_all_operations():
        operation = found.ok()

        @how
        @given(case=operation.as_strategy())
        def ask_all(case: Any) -> None:
            nonlocal asked
            asked += 1
            ask(case)

        ask_all()
    return asked


def test_as_the_machines_own_user(api: Any) -> None:
    assert _fuzz(api, BRIEFLY, lambda case: case.call_and_validate(checks=CHECKS, timeout=LIMIT_S)) > 100


def test_with_a_users_key(api: Any, server: Served) -> None:
    secret, key = new_key("ann", "user", time.time())
    server.store.keys.add(key)
    headers = {"Authorization": f"Bearer {secret}"}
    assert (
        _fuzz(api, BRIEFLY, lambda case: case.call_and_validate(checks=CHECKS, headers=headers, timeout=LIMIT_S)) > 100
    )


def test_from_elsewhere_without_a_key(api: Any) -> None:
    def ask(case: Any) -> None:
        answer = case.call_and_validate(checks=CHECKS, headers={"X-Forwarded-For": "192.0.2.1"}, timeout=LIMIT_S)
        assert answer.status_code == 401 or case.operation.path in ("/healthz", "/readyz", "/session")

    assert _fuzz(api, settings(BRIEFLY, max_examples=1), ask) > 30
