"""Over every route of the service: a key of one user neither reads nor changes what is another's."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from drumline.jobs.keeper_files import log_of, rows_of, run_of
from drumline.jobs.records import Job, Lease
from drumline.jobs.requests import JobRequest, Who
from drumline.service.state import Service
from tests.service.services import KEYED, add_job, bearer, config, finetune, running

MARK = "of-b-alone"
"""In everything of Bob's: names, texts, logs, records, settings."""
BOB = Who("bob")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[TestClient, Service]]:
    with running(config(tmp_path, access=KEYED)) as pair:
        yield pair


def test_no_route_tells_or_changes_what_is_another_users(service: tuple[TestClient, Service]) -> None:
    client, opened = service
    running_job, ended_job, plan_id = _things_of_bob(opened)
    everything = _everything(opened)
    alice, bob_key = bearer(opened, "alice"), next(key for key in opened.store.keys.list() if key.owner == "bob")
    before = opened.store.keys.get(bob_key.id)
    told = []
    asked = 0
    for method, path, operation in _operations(client):
        for job in (running_job, ended_job):
            for accept in _accepts(operation):
                url, body = _filled(path, operation, job, plan_id, bob_key.id)
                answer = client.request(method, url, json=body, headers={**alice, **accept})
                asked += 1
                named = [name for name in (running_job.id, ended_job.id, plan_id) if name not in f"{url} {body}"]
                if any(word in answer.text for word in (MARK, "bob", *named)):
                    told.append(f"{method} {url}: {answer.status_code} {answer.text[:300]}")
                if "{job_id}" in path or "{config_id}" in path:
                    assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), (method, url)
                assert _everything(opened) == everything, f"{method} {url} changed what is Bob's"
    assert told == []
    assert opened.store.keys.get(bob_key.id) == before
    assert asked > 60
    bob = bearer(opened, "bob")
    plans = opened.config.data_dir / "plans"
    assert client.delete(f"/multigpu/training/config/{plan_id}", headers=bob).status_code == 204
    assert not any(MARK.encode() in path.read_bytes() for path in plans.rglob("*") if path.is_file())


def test_without_a_key_nothing_is_answered_but_health_and_the_login(service: tuple[TestClient, Service]) -> None:
    client, opened = service
    job, _, plan_id = _things_of_bob(opened)
    open_to_all = {("GET", "/healthz"), ("GET", "/readyz"), ("POST", "/session")}
    for method, path, operation in _operations(client):
        url, body = _filled(path, operation, job, plan_id, "key-1")
        for headers in ({}, {"Authorization": "Bearer dl_no_such_key"}, {"Cookie": "drumline_session=no-such-login"}):
            answer = client.request(method, url, json=body, headers=headers)
            if (method, path) in open_to_all:
                assert answer.status_code != 403, (method, path)
            else:
                assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), (method, path)
                assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_a_viewer_changes_nothing_even_of_its_own(service: tuple[TestClient, Service]) -> None:
    client, opened = service
    job, ended, plan_id = _things_of_bob(opened)
    everything = _everything(opened)
    viewer = bearer(opened, "bob", "viewer")
    for method, path, operation in _operations(client):
        if method == "GET" or path == "/session":
            continue
        for one in (job, ended):
            url, body = _filled(path, operation, one, plan_id, "key-1")
            status = client.request(method, url, json=body, headers=viewer).status_code
            assert status in (400, 403, 404, 422) or path in LOOKS, (method, path, status)
            assert _everything(opened) == everything, (method, path)


LOOKS = {"/multigpu/gpu/test"}
"""A POST that changes nothing of anybody's."""


def _things_of_bob(opened: Service) -> tuple[Job, Job, str]:
    bearer(opened, "bob")
    values: dict[str, Any] = {"name": MARK, "user_id": MARK, "tags": (MARK,), "message": MARK}
    jobs = []
    for state in ("running", "succeeded"):
        job = add_job(opened, "bob", state, id=f"job-b-{state}", devices=("cpu:0",), attempt=1, **values)
        folder, run = opened.board.folder(job), run_of(opened.board.folder(job))
        run.logs.mkdir(parents=True)
        for path in (rows_of(folder), run.metrics, run.events):
            path.write_text(json.dumps({"kind": "train", "loss": 1.0, "step": 1, "text": MARK}) + "\n")
        for path in (log_of(folder), run.log_of(0), run.logs / "agent.log", run.config):
            path.write_text(f"name: {MARK}\n")
        jobs.append(job)
    with opened.store.change() as change:
        change.grant(jobs[0], ["cpu:0"], 0.0, 1e9)
    assert [lease.job_id for lease in opened.store.leases.all() if isinstance(lease, Lease)] == [jobs[0].id]
    plan = opened.board.plan(JobRequest.model_validate(finetune(name=MARK, texts=[MARK])), BOB)
    return jobs[0], jobs[1], plan.id


def _everything(opened: Service) -> dict[str, Any]:
    """What is Bob's: his jobs and leases as the store has them, every file of theirs, and the texts of his plans."""
    found = opened.store.jobs.find(_of_bob(), limit=200).items
    files = {
        str(path): path.read_bytes()
        for job in found
        for path in sorted(opened.board.folder(job).rglob("*"))
        if path.is_file()
    }
    texts = {path: path.read_bytes() for path in (opened.config.data_dir / "plans").rglob("*") if path.is_file()}
    plans = {str(path): text for path, text in texts.items() if MARK.encode() in text}
    assert plans, "the texts of Bob's plan are gone"
    return {"jobs": found, "leases": opened.store.leases.all(), "files": files, "plans": plans}


def _of_bob() -> Any:
    from drumline.jobs.store import JobFilter

    return JobFilter(owner="bob")


def _operations(client: TestClient) -> list[tuple[str, str, dict[str, Any]]]:
    document = client.get("/openapi.json").json()
    found = [
        (method.upper(), path, {**operation, "components": document["components"]})
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    # What ends the caller's own login comes last.
    return sorted(found, key=lambda entry: (entry[0] == "DELETE", entry[1]))


def _accepts(operation: dict[str, Any]) -> list[dict[str, str]]:
    streams = "text/event-stream" in operation["responses"].get("200", {}).get("content", {})
    return [{}, {"Accept": "text/event-stream"}] if streams else [{}]


def _filled(path: str, operation: dict[str, Any], job: Job, plan_id: str, key_id: str) -> tuple[str, Any]:
    """The address with Bob's ids in it, whatever names him in the query, and a body that could be meant."""
    values = {"job_id": job.id, "key_id": key_id, "gpu_id": "0", "config_id": plan_id}
    url = path.format(**values)
    known = {"owner": job.owner, "q": MARK, "tag": MARK, "user_id": MARK, "config_id": plan_id, "job_id": job.id}
    names = [parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == "query"]
    query = "&".join(f"{name}={known[name]}" for name in names if name in known)
    url = f"{url}?{query}" if query else url
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return url, None
    body = _example(content["schema"], operation["components"]["schemas"])
    if isinstance(body, dict) and "config_id" in json.dumps(content["schema"]) + json.dumps(_properties(operation)):
        body = {**body, "config_id": plan_id}
    return url, body


def _properties(operation: dict[str, Any]) -> Any:
    content = operation["requestBody"]["content"]["application/json"]["schema"]
    references = [content.get("$ref", ""), *(part.get("$ref", "") for part in content.get("anyOf", []))]
    schemas = operation["components"]["schemas"]
    return [schemas[reference.rpartition("/")[2]].get("properties", {}) for reference in references if reference]


def _example(schema: dict[str, Any], schemas: dict[str, Any]) -> Any:
    """The first example of a schema, its default, or the plainest value that fits."""
    if "$ref" in schema:
        return _example(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if schema.get("examples"):
        return schema["examples"][0]
    for part in itertools.chain(schema.get("anyOf", []), schema.get("oneOf", [])):
        return _example(part, schemas)
    if "default" in schema or "const" in schema:
        return schema.get("default", schema.get("const"))
    if schema.get("type") == "object":
        required = schema.get("required", [])
        return {name: _example(schema["properties"][name], schemas) for name in required}
    return {"string": schema.get("enum", ["x"])[0], "integer": 1, "number": 1.0, "boolean": True}.get(
        schema.get("type", ""), []
    )
