"""Jobs as real processes: kept without their service, found again by another, and ended with all that they started."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from drumline.jobs.executor import KEEPER
from drumline.jobs.records import Job
from drumline.rundir import read_json, read_lines
from tests.cli.supervised import Supervised

SECONDS = 5.0
"""Within which a job whose launcher was killed is known to have failed."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Supervised]:
    """One with two slots and simulated commands."""
    service = Supervised(tmp_path / "data")
    yield service
    service.close()


def ledger(service: Supervised, job: Job) -> list[int]:
    """The attempts that began, in their order."""
    return [line["begun"] for line in read_lines(service.executor.folder(job.id) / "ledger.jsonl") if "begun" in line]


def test_a_job_runs_to_its_end_and_its_model_is_written(service: Supervised) -> None:
    service.add("a", export=True, steps=3)
    job = service.until_ended("a")
    folder = service.executor.folder("a")
    assert (job.state, job.reason, job.attempt, job.failures) == ("succeeded", None, 1, 0)
    assert job.result["success"] is True
    assert job.result["model_path"] == str(folder / "model")
    assert job.result["best_loss"] == pytest.approx(1 / 3)
    assert job.progress["step"] == job.progress["num_steps"] == 3
    assert job.result["usage"]["device_seconds"] == pytest.approx(job.used_s)
    assert 0 < job.result["usage"]["goodput"] < 1
    assert (folder / "command.log").read_text().splitlines() == ["step 1", "step 2", "step 3", "exported"]
    assert service.store.leases.all() == ()
    kept = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in [folder, *kept] if stat.S_IMODE(path.stat().st_mode) & 0o077] == []


def test_what_a_command_says_is_why_a_job_failed(service: Supervised) -> None:
    service.add("bad", does="bad")
    service.add("nan", does="failing")
    bad, nan = service.until_ended("bad"), service.until_ended("nan")
    assert (bad.reason, bad.message, bad.fix) == ("bad_request", "there is no such model", "name another")
    assert (nan.reason, nan.message, nan.fix) == ("failed", "it is NaN", "lower the rate")


def test_a_launcher_that_is_killed_fails_its_job_within_seconds_and_frees_the_lease(service: Supervised) -> None:
    service.add("a", does="orphan")
    job = service.until_it_works("a")
    [command] = [process for process in psutil.Process(job.pid).children() if process.pid in service.processes(job)]
    command.kill()
    job = service.until_ended("a", SECONDS)
    assert (job.state, job.reason) == ("failed", "killed")
    assert "SIGKILL" in job.message
    assert service.processes(job) == []
    assert service.store.leases.all() == ()


def test_a_keeper_that_is_killed_takes_its_commands_with_it(service: Supervised) -> None:
    service.add("a", does="orphan")
    job = service.until_it_works("a")
    assert len(service.processes(job)) == 3
    os.kill(job.pid or 0, signal.SIGKILL)
    job = service.until_ended("a", SECONDS)
    assert (job.state, job.reason) == ("failed", "launcher_killed")
    assert service.processes(job) == []
    assert service.store.leases.all() == ()


def test_a_failure_that_may_be_cured_is_tried_again_and_goes_on(service: Supervised) -> None:
    service.add("a", steps=20, pace_s=0.05, retries=1)
    job = service.until_it_works("a")
    os.kill(job.pid or 0, signal.SIGKILL)
    job = service.until_ended("a")
    assert (job.state, job.attempt, job.failures) == ("succeeded", 2, 1)
    assert ledger(service, job) == [1, 2]
    assert [line["step"] for line in read_lines(service.executor.folder("a") / "run/metrics.jsonl")] == [*range(1, 21)]


def test_another_service_finds_a_running_job_again(service: Supervised) -> None:
    service.add("a", does="long")
    before = service.until_it_works("a")
    service.supervisor.close()
    assert before.pid is not None
    assert psutil.pid_exists(before.pid)
    service.begin()
    for _ in range(3):
        service.supervisor.tick()
    after = service.get("a")
    assert (after.state, after.pid, after.pid_began, after.attempt) == ("running", before.pid, before.pid_began, 1)
    service.ask("a", "cancel")
    job = service.until_ended("a")
    assert (job.state, job.reason) == ("cancelled", "cancelled")
    assert ledger(service, job) == [1]


def test_what_ended_while_nobody_looked_is_known_to_the_next_service(service: Supervised) -> None:
    service.add("a", steps=2)
    service.until("a", lambda job: job.pid is not None)
    service.supervisor.close()
    end = service.files(service.get("a")).end
    limit = time.monotonic() + 20
    while not end.exists():
        assert time.monotonic() < limit
        time.sleep(0.02)
    service.begin()
    assert service.until_ended("a").state == "succeeded"


def test_a_service_that_was_killed_before_it_started_the_keeper_is_followed_by_one_that_does(
    service: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.add("a")
    with monkeypatch.context() as patch:
        patch.setattr(service.executor, "start", lambda job: None)
        service.until("a", lambda job: job.state == "starting")
    service.begin()
    job = service.until_ended("a")
    assert (job.state, job.attempt, ledger(service, job)) == ("succeeded", 1, [1])


def test_two_keepers_of_one_attempt_begin_it_once(service: Supervised) -> None:
    service.add("a", steps=3)
    service.until("a", lambda job: job.state == "starting" and service.files(job).request.exists())
    command = [*KEEPER, str(service.executor.folder("a")), "1"]
    others = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(3)]
    job = service.until_ended("a")
    assert [other.wait(20) for other in others] == [0, 0, 0]
    assert (job.state, ledger(service, job)) == ("succeeded", [1])


def test_a_job_that_is_cancelled_before_its_keeper_began_never_begins(
    service: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.add("a")
    monkeypatch.setattr(service.executor, "start", lambda job: None)
    service.until("a", lambda job: job.state == "starting")
    service.ask("a", "cancel")
    assert service.until_ended("a").state == "cancelled"
    files = service.files(service.get("a")) if service.executor.folder("a").exists() else None
    assert files is None or read_json(files.claim)["void"] == "stopped"


def test_a_deaf_job_is_killed_after_its_grace(tmp_path: Path) -> None:
    service = Supervised(tmp_path / "data", stop_grace_s=0.2)
    service.add("a", does="deaf")
    service.until_it_works("a")
    service.ask("a", "cancel")
    job = service.until_ended("a")
    assert (job.state, job.reason) == ("cancelled", "cancelled")
    assert service.processes(job) == []
    service.close()


def test_a_job_that_has_used_up_its_time_is_saved_and_ended(service: Supervised) -> None:
    service.add("a", does="long", time_limit_s=1000)
    job = service.until_it_works("a")
    service.store.jobs.update("a", lambda job: replace(job, resources=replace(job.resources, time_limit_s=0.1)))
    job = service.until_ended("a")
    assert (job.state, job.reason) == ("timed_out", "time_limit")
    assert read_json(service.executor.folder("a") / "run/exit.json")["exit_status"] == 3
    assert job.used_s >= 0.1


def test_a_job_of_higher_priority_takes_the_devices_and_the_other_one_goes_on_later(service: Supervised) -> None:
    service.add("low", steps=40, pace_s=0.03, devices=2)
    service.until_it_works("low")
    service.add("high", steps=2, priority=10, devices=2)
    assert service.until_ended("high").state == "succeeded"
    low = service.until_ended("low")
    assert (low.state, low.attempt, low.failures) == ("succeeded", 2, 0)
    assert [line["step"] for line in read_lines(service.executor.folder("low") / "run/metrics.jsonl")] == [
        *range(1, 41)
    ]
    assert low.used_s > 0
    device_s = sum(use.device_s for use in service.store.jobs.usage(0, time.time() + 1))
    assert device_s == pytest.approx(2 * (low.used_s + service.get("high").used_s), rel=0.02)


def test_an_elastic_job_gives_a_device_away_and_takes_it_back(service: Supervised) -> None:
    service.add("wide", does="long", min_devices=1, max_devices=2)
    assert len(service.until_it_works("wide").devices) == 2
    service.add("other", steps=3, pace_s=0.05)
    assert service.until_ended("other").state == "succeeded"
    job = service.until("wide", lambda job: job.state == "running" and job.attempt == 3)
    assert len(job.devices) == 2
    commands = [read_json(service.executor.folder("wide") / f"attempt_{number}.request.json") for number in (1, 2, 3)]
    settings = [json.loads(each[0]["words"][-1]) for each in commands]
    assert [len(each["devices"]) for each in settings] == [2, 1, 2]
    service.ask("wide", "cancel")
    job = service.until_ended("wide")
    assert job.state == "cancelled"
    assert job.used_s < job.result["usage"]["device_seconds"] < 2 * job.used_s


def test_a_folder_that_is_gone_is_a_lost_job_and_stops_no_other(service: Supervised) -> None:
    service.add("a", does="long")
    service.add("b", steps=20, pace_s=0.05)
    job = service.until_it_works("a")
    service.executor.folder("a").rename(service.folder / "elsewhere")
    lost = service.until_ended("a")
    assert (lost.state, lost.reason) == ("lost", "files_missing")
    assert service.processes(job) == []
    assert service.until_ended("b").state == "succeeded"


def test_a_job_that_cannot_be_started_says_why_and_stops_no_other(service: Supervised) -> None:
    (service.folder / "jobs/a").write_text("not a folder")
    service.add("a")
    service.add("b")
    assert service.until_ended("b").state == "succeeded"
    job = service.until_ended("a")
    assert (job.state, job.reason) == ("failed", "not_started")
    assert "its files cannot be written" in job.message


def test_jobs_are_saved_and_queued_again_where_the_service_ends_with_them(service: Supervised) -> None:
    service.add("a", does="long")
    service.until_it_works("a")
    service.supervisor.start()
    service.supervisor.close(stop_jobs=True)
    job = service.get("a")
    assert (job.state, job.reason, job.attempt) == ("queued", "preempted", 1)
    assert service.store.leases.all() == ()


def test_the_thread_looks_after_jobs_and_is_gone_after_close(service: Supervised) -> None:
    service.supervisor.start()
    service.add("a")
    service.supervisor.wake()
    limit = time.monotonic() + 30
    while not service.get("a").has_ended:
        assert time.monotonic() < limit
        time.sleep(0.02)
    assert service.get("a").state == "succeeded"
    service.supervisor.close()


def test_a_job_of_another_container_is_left_alone_while_its_keeper_lives_and_then_queued_again(
    service: Supervised,
) -> None:
    service.add("a", does="long")
    job = service.until_it_works("a")
    claim = service.files(job).claim
    claim.write_text(json.dumps({**read_json(claim), "machine": "another container"}))
    for _ in range(3):
        service.supervisor.tick()
    assert (service.get("a").state, service.get("a").attempt) == ("running", 1)
    os.kill(job.pid or 0, signal.SIGKILL)
    again = service.until("a", lambda job: job.attempt == 2 and job.state == "running")
    assert again.failures == 0
    service.ask("a", "cancel")
    service.until_ended("a")


def test_a_keeper_without_its_request_says_so(service: Supervised, tmp_path: Path) -> None:
    ended = subprocess.run([*KEEPER, str(tmp_path), "1"], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "attempt_1.request.json" in ended.stderr
    assert sys.executable == KEEPER[0]
