"""What a service tells of another machine on its store that does not answer, and how an admin gives it up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from drumline.jobs.records import Job, Resources, Work
from drumline.jobs.silence import Neighbours, silent_s
from drumline.service.state import Service
from tests.service.services import KEYED, bearer, config, running

Pair = tuple[TestClient, Service]
LONG_S = 1000.0


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Pair]:
    with running(config(tmp_path, access=KEYED, node="here")) as pair:
        yield pair


def run_at(service: Service, node: str, owner: str, renewed: float, device: str = "cpu:0") -> str:
    """A running job of another machine, whose lease was renewed last at this moment."""
    job = Job(f"job-{owner}-{node}", owner, Work("train", {}), Resources(devices=1), renewed, node=node)
    with_devices = replace(job, state="running", devices=(device,), attempt=1, attempt_began=renewed)
    service.store.jobs.add(with_devices)
    with service.store.change() as change:
        change.grant(with_devices, [device], renewed, 30.0)
    return job.id


def watch(service: Service, share: float = 1.0) -> None:
    """Look at the other machines as a supervisor of this one does, for this share of what makes them silent."""
    at, policy = [0.0], service.config.scheduling
    neighbours = Neighbours(service.store, service.node, policy, lambda: at[0])
    for part in (0.0, 0.5, 1.0):
        at[0] = part * share * silent_s(policy)
        neighbours.look(time.time())


def nodes(client: TestClient, headers: dict[str, str]) -> Any:
    found = {each["name"]: each for each in client.get("/multigpu/health", headers=headers).json()["checks"]}
    return found["nodes"]


def clean(client: TestClient, headers: dict[str, str], give_up: Any) -> Any:
    return client.post("/multigpu/resources/manage", json={"action": "cleanup", "give_up": give_up}, headers=headers)


def test_a_silent_machine_is_told_of_in_health_resources_and_its_jobs(keyed: Pair) -> None:
    client, opened = keyed
    ann, bob = bearer(opened, "ann"), bearer(opened, "bob")
    job_id = run_at(opened, "away", "ann", time.time() - LONG_S)
    run_at(opened, "busy", "ann", time.time())
    watch(opened, 0.9)
    assert nodes(client, ann)["status"] == "ok"
    assert client.get("/multigpu/resources/status", headers=ann).json()["leases"] == []
    watch(opened)
    found = nodes(client, bob)
    assert (found["status"], found["message"]) == ("degraded", "away does not answer (1 job)")
    assert "nodes" in client.get("/multigpu/health", headers=bob).json()["degraded"]
    [lease] = client.get("/multigpu/resources/status", headers=ann).json()["leases"]
    assert (lease["node"], lease["device"], lease["job_id"], lease["run_out"]) == ("away", "cpu:0", job_id, True)
    [lease] = client.get("/multigpu/resources/status", headers=bob).json()["leases"]
    assert (lease["job_id"], lease["owner"], lease["run_out"]) == (None, None, True)
    job = client.get(f"/jobs/{job_id}", headers=ann).json()
    assert (job["state"], job["reason"]) == ("running", "node_silent")
    assert job["message"].endswith("node away does not answer")
    ended = client.post(f"/jobs/{job_id}/cancel", headers=ann).json()
    assert (ended["state"], ended["reason"]) == ("lost", "node_lost")
    assert nodes(client, ann)["status"] == "ok"


def test_leases_of_this_machine_run_out_too_where_nobody_looks_after_it(keyed: Pair) -> None:
    client, opened = keyed
    ann = bearer(opened, "ann")
    for device, renewed in (("cpu:0", time.time() - LONG_S), ("cpu:1", time.time() + LONG_S)):
        run_at(opened, "here", f"ann-{device}", renewed, device)
    leases = client.get("/multigpu/resources/status", headers=ann).json()["leases"]
    assert [(lease["node"], lease["device"], lease["run_out"]) for lease in leases] == [
        ("here", "cpu:0", True),
        ("here", "cpu:1", False),
    ]


def test_an_admin_gives_up_a_machine_by_its_name(keyed: Pair) -> None:
    client, opened = keyed
    root, ann = bearer(opened, "root", "admin"), bearer(opened, "ann")
    away, gone = (run_at(opened, node, "ann", time.time() - LONG_S) for node in ("away", "gone"))
    refused = clean(client, root, ["away"])
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict"), "nobody says so yet"
    watch(opened)
    assert clean(client, ann, ["away"]).status_code == 403
    refused = clean(client, root, ["away", "here"])
    assert refused.status_code == 409
    assert refused.json()["fix"] == "those that do not answer are away, gone"
    assert opened.store.jobs.counts() == {"running": 2}
    found = clean(client, root, ["away"]).json()["cleanup"]
    assert found["jobs_lost"] == [away]
    states = {job_id: client.get(f"/jobs/{job_id}", headers=root).json()["state"] for job_id in (away, gone)}
    assert states == {away: "lost", gone: "running"}
    assert [lease.job_id for lease in opened.store.leases.all()] == [gone]


def test_an_admin_gives_up_all_that_are_silent_and_no_other(keyed: Pair) -> None:
    client, opened = keyed
    root = bearer(opened, "root", "admin")
    busy = run_at(opened, "busy", "ann", time.time())
    lost = {run_at(opened, node, "ann", time.time() - LONG_S) for node in ("away", "gone")}
    watch(opened)
    assert clean(client, root, []).json()["cleanup"]["jobs_lost"] == [], "cleaning alone ends no job"
    assert set(clean(client, root, "all").json()["cleanup"]["jobs_lost"]) == lost
    assert clean(client, root, "all").json()["cleanup"]["jobs_lost"] == []
    assert [lease.job_id for lease in opened.store.leases.all()] == [busy]
    assert clean(client, root, "some").status_code == 422
