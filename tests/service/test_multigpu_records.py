"""What was trained and what it took: history, comparison, performance, optimisation, cleaning."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from drumline.jobs.adoption import MARK, marked
from drumline.jobs.commands import commands_of
from drumline.jobs.records import Job, Work
from drumline.rundir import RunDir
from drumline.service.state import Service
from tests.service.machines import UUIDS
from tests.service.services import KEYED, add_job, bearer, config, running

Pair = tuple[TestClient, Service]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Pair]:
    with running(config(tmp_path, scheduling={"cost_per_gpu_hour": 3.6})) as pair:
        yield pair


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Pair]:
    with running(config(tmp_path, access=KEYED)) as pair:
        yield pair


def done(
    service: Service, owner: str = "local", *, loss: float = 2.0, rate: float = 100.0, micro_batch: int = 8
) -> Job:
    """A training that has come to its end, with its run directory."""
    job = add_job(
        service,
        owner,
        "succeeded",
        training_type="auto",
        devices=("GPU-a",),
        used_s=100.0,
        progress={"units_per_s": rate, "unit": "tokens", "elapsed_s": 80.0, "step": 5, "loss": loss},
        result={
            "best_loss": loss,
            "training_time": 80.0,
            "gpu_stats": {"gpus": ["GPU-a"], "gpu_seconds": 100.0, "energy_j": 5e4, "cost": 0.0},
        },
    )
    run = RunDir.create(service.board.folder(job) / "run")
    plan = {"device": "cuda", "gpus": ["GPU-a"], "world_size": 1, "kind": "single", "micro_batch": micro_batch}
    run.plan.write_text(json.dumps(plan))
    run.config.write_text(f"train:\n  lr: {loss / 1000}\n  global_batch: 8\nrun_dir: {run.path}\n")
    lines = [{"kind": "train", "units_per_s": rate, "unit": "tokens"} for _ in range(3)]
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return job


def test_history_is_paged_and_filtered(service: Pair) -> None:
    client, opened = service
    jobs = [done(opened) for _ in range(3)]
    add_job(opened, state="queued", training_type="distributed")
    first = client.get("/multigpu/training/history?limit=2&training_type=auto").json()
    assert (first["total"], [item["id"] for item in first["items"]]) == (3, [jobs[2].id, jobs[1].id])
    item = first["items"][0]
    assert (item["best_loss"], item["training_time"], item["gpu_stats"]["energy_j"]) == (2.0, 80.0, 5e4)
    query: dict[str, str | int] = {"limit": 2, "training_type": "auto", "cursor": first["next"]}
    rest = client.get("/multigpu/training/history", params=query)
    assert ([each["id"] for each in rest.json()["items"]], rest.json()["next"]) == ([jobs[0].id], None)
    again = client.get("/multigpu/training/history", params=query, headers={"If-None-Match": rest.headers["ETag"]})
    assert again.status_code == 304


def test_history_has_trainings_that_have_begun_or_ended(service: Pair) -> None:
    client, opened = service
    over = done(opened)
    runs = add_job(opened, state="running", started=time.time())
    again = add_job(opened, state="queued", started=time.time(), attempt=1)  # preempted: it goes on later
    never = add_job(opened, state="cancelled")
    waits = add_job(opened, state="queued", tags=("spring",))
    answers = add_job(opened, state="succeeded", work=Work("infer", {}, model="m"))

    def listed(query: str = "") -> tuple[int, list[str]]:
        found = client.get(f"/multigpu/training/history{query}").json()
        return found["total"], [each["id"] for each in found["items"]]

    assert listed() == (4, [never.id, again.id, runs.id, over.id])
    assert listed("?limit=1") == (4, [never.id])
    assert listed("?kind=infer") == (1, [answers.id])
    assert listed("?state=queued") == (2, [waits.id, again.id])
    assert listed("?tag=spring") == (0, [])


def test_several_are_put_beside_each_other(service: Pair) -> None:
    client, opened = service
    worse, better = done(opened, loss=2.0), done(opened, loss=1.0)
    query: dict[str, Any] = {"compare": [worse.id, better.id], "limit": 1}
    found = client.get("/multigpu/training/history", params=query).json()["comparison"]
    assert [(each["id"], each["best_loss"], each["is_best"]) for each in found["trainings"]] == [
        (worse.id, 2.0, False),
        (better.id, 1.0, True),
    ]
    assert found["trainings"][0]["goodput"] == pytest.approx(0.8)
    assert found["differences"] == {"train.lr": {worse.id: 0.002, better.id: 0.001}}
    assert client.get("/multigpu/training/history?compare=job-none").status_code == 404


def test_others_jobs_are_in_nobodys_numbers(keyed: Pair) -> None:
    client, opened = keyed
    job = done(opened, "ann")
    bob = bearer(opened, "bob")
    assert client.get(f"/multigpu/training/history?compare={job.id}", headers=bob).status_code == 404
    optimized = client.post("/multigpu/resources/manage", json={"action": "optimize"}, headers=bob).json()
    assert optimized["optimize"]["recommendations"] == []
    assert client.get("/multigpu/training/history", headers=bob).json()["total"] == 0


def test_optimize_recommends_what_was_measured(service: Pair) -> None:
    client, opened = service
    done(opened, rate=100.0, micro_batch=4)
    fast = done(opened, rate=150.0, micro_batch=16)
    found = client.post("/multigpu/resources/manage", json={"action": "optimize", "model_name": "tiny"}).json()
    (best,) = found["optimize"]["recommendations"]
    assert (best["measured_by"], best["settings"]["train.micro_batch"], best["units_per_s"]) == (fast.id, 16, 150.0)
    assert "50% more" in best["reason"]
    nothing = client.post("/multigpu/resources/manage", json={"action": "optimize", "model_name": "other"}).json()
    assert nothing["optimize"]["message"].startswith("no run has been measured")


def cleaned(client: TestClient, headers: dict[str, str] | None = None) -> Any:
    answer = client.post("/multigpu/resources/manage", json={"action": "cleanup"}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["cleanup"]


def held_by_an_ended_job(service: Service, owner: str, device: str) -> Job:
    """What a service that was killed at the worst moment leaves."""
    job = add_job(service, owner, "queued")
    with service.store.change() as change:
        (stored,) = [each for each in change.jobs(states={"queued"}) if each.id == job.id]
        change.grant(stored, [device], time.time(), 30.0)
        change.save(replace(stored, state="failed", ended=time.time(), attempt=1))
    return job


def test_cleaning_ends_what_is_left_and_gives_back_leases(service: Pair) -> None:
    client, opened = service
    job = held_by_an_ended_job(opened, "local", UUIDS[0])
    mark = f"{job.id}/1"
    code = "import time; print('up', flush=True); time.sleep(60)"
    child = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, MARK: mark}, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        found = cleaned(client)
        assert (found["processes_ended"], found["leases_released"]) == ([child.pid], [UUIDS[0]])
        assert child.wait(5) < 0
        assert marked(mark) == []
        assert cleaned(client)["leases_released"] == []
    finally:
        child.kill()
        child.communicate()


def test_cleaning_removes_caches_but_no_run(service: Pair) -> None:
    client, opened = service
    job = done(opened)
    folder, data_dir = opened.board.folder(job), opened.config.data_dir
    of_texts = cache_of(replace(job, work=Work("finetune", {}, model="m")), folder, data_dir)
    of_files = cache_of(replace(job, work=Work("finetune", {}, model="m", data=("/a.jsonl",))), folder, data_dir)
    assert of_texts != of_files
    for cache in (of_texts, of_files):
        (cache / "abc").mkdir(parents=True)
        (cache / "abc" / "rows").write_bytes(b"x" * 1000)
    found = cleaned(client)
    assert (found["removed"], found["freed_bytes"] >= 2000) == (2, True)
    assert not of_texts.exists() and not of_files.exists()
    assert (folder / "run" / "metrics.jsonl").is_file()


def cache_of(job: Job, folder: Path, data_dir: Path) -> Path:
    """Where the job's data is prepared, as its command has it, in its second attempt."""
    words = commands_of(job, folder, data_dir / "cache")[0].words
    (text,) = [word for word in words if word.startswith("data.cache_dir=")]
    return Path(text.partition("=")[2].strip('"'))


def test_cleaning_removes_old_plans_and_what_was_half_made_and_no_job_of_another_store(service: Pair) -> None:
    client, opened = service
    data_dir = opened.config.data_dir
    made = {
        "jobs/job-nobody": (None, 0.1, False),
        "jobs/job-young": (None, 0.01, True),
        "jobs/job-waits": ("rows.jsonl", 6.0, True),
        "jobs/job-texts": ("rows.jsonl", 8.0, False),
        "jobs/job-ran": ("run/exit.json", 100.0, True),
        "jobs/job-exported": ("model/config.json", 100.0, True),
        "jobs/job-failed": ("command.log", 100.0, True),
        "plans/plan-old": ("rows.jsonl", 8.0, False),
        "plans/plan-young": ("rows.jsonl", 6.0, True),
    }
    for name, (file, days, _) in made.items():
        (data_dir / name).mkdir(parents=True)
        if file is not None:
            (data_dir / name / file).parent.mkdir(exist_ok=True)
            (data_dir / name / file).write_text("x")
        then = time.time() - days * 86_400
        os.utime(data_dir / name, (then, then))
    found = cleaned(client)
    assert {name: (data_dir / name).is_dir() for name in made} == {name: stays for name, (_, _, stays) in made.items()}
    assert found["removed"] == 3
    notes = "\n".join(found["notes"])
    assert "know them: 4 (job-exported, job-failed, job-ran, …)" in notes and "7 days were removed: 1" in notes


def test_the_shared_cache_stays_while_jobs_run(service: Pair) -> None:
    client, opened = service
    add_job(opened, state="running")
    shared = opened.config.data_dir / "cache" / "abc"
    shared.mkdir(parents=True)
    found = cleaned(client)
    assert shared.is_dir()
    assert "jobs run" in found["notes"][0]


def test_a_user_cleans_their_own_only(keyed: Pair) -> None:
    client, opened = keyed
    for owner, device in (("ann", UUIDS[0]), ("bob", UUIDS[1])):
        held_by_an_ended_job(opened, owner, device)
    shared = opened.config.data_dir / "cache" / "abc"
    shared.mkdir(parents=True)
    assert cleaned(client, bearer(opened, "ann"))["leases_released"] == [UUIDS[0]]
    assert shared.is_dir()
    assert cleaned(client, bearer(opened, "root", "admin"))["leases_released"] == [UUIDS[1]]
