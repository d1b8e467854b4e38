"""A machine that comes back finds jobs that were given up meanwhile: their processes end, and nobody else's."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from drumline.jobs.adoption import MARK, marks
from drumline.jobs.records import Job
from drumline.jobs.states import GivenUp, Silent, handle
from tests.unit.jobs.supervisor_in_hand import Service

LIMIT_S = 60.0
Start = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    yield service
    service.supervisor.close()
    service.store.close()


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process with a mark, which is there when it returns."""
    started: list[subprocess.Popen[bytes]] = []

    def process(mark: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(["sleep", "300"], env={**os.environ, MARK: mark}, start_new_session=True)
        started.append(child)
        limit = time.monotonic() + LIMIT_S
        # The call returns while the program is being executed, when its environment is still empty for a moment.
        while child.pid not in marks().get(mark, []):
            assert time.monotonic() < limit, f"{child.pid} has no mark: it is {child.poll()}"
            time.sleep(0.01)
        return child

    yield process
    for child in started:
        child.kill()
        child.wait(LIMIT_S)


def lose(service: Service, name: str) -> None:
    """As another machine does that has not heard of this one for long."""

    def lost(job: Job) -> Job:
        now = service.now
        return handle(handle(job, Silent(now, now)).job, GivenUp(now, now, "ann")).job

    assert service.store.jobs.update(name, lost)
    with service.store.change() as change:
        change.release(name)
    assert service.get(name).state == "lost"


@pytest.mark.parametrize("restarted", [False, True])
def test_processes_of_a_job_that_was_given_up_end_and_those_of_others_do_not(
    service: Service, start: Start, restarted: bool
) -> None:
    for name in ("left-lost", "left-runs"):
        service.add(name)
    service.running("left-lost", "left-runs")
    service.store.jobs.add(replace(service.get("left-lost"), id="left-elsewhere", node="elsewhere", state="lost"))
    lost, runs, elsewhere, unknown = (
        start(f"{name}/1") for name in ("left-lost", "left-runs", "left-elsewhere", "left-unknown")
    )
    lose(service, "left-lost")
    if restarted:
        service.begin()
    service.tick()
    assert lost.wait(LIMIT_S) == -9
    service.tick()
    assert [child.poll() for child in (runs, elsewhere, unknown)] == [None] * 3
    assert service.get("left-lost").state == "lost"
    assert service.get("left-runs").state == "running"


def test_devices_are_given_on_only_after_that(service: Service, start: Start) -> None:
    """Somebody gives the job up just between a look at what runs and the decision what is to run."""
    for name in ("left-lost", "left-runs"):
        service.add(name, devices=2)
    service.running("left-lost", "left-runs")
    child = start("left-lost/1")
    service.add("next", devices=2)

    def meanwhile(job: Job) -> None:
        if service.get("left-lost").state != "lost":
            lose(service, "left-lost")

    service.executor.events["left-runs"] = meanwhile
    service.tick(2.0)
    assert (service.get("left-lost").state, service.get("next").state, child.poll()) == ("lost", "queued", None)
    service.tick(2.0)
    assert child.wait(LIMIT_S) == -9
    service.tick(2.0)  # where the kernel took longer than the one before waits for it
    assert service.get("next").state == "starting"


def test_what_does_not_end_is_looked_for_again_and_keeps_its_device(
    service: Service, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from drumline.jobs import leftovers

    service.add("left-lost")
    service.running("left-lost")
    start("left-lost/1")
    lose(service, "left-lost")
    [device] = service.get("left-lost").devices
    service.add("others", devices=3)
    service.add("then", devices=4)
    found: list[str] = []

    def stuck(mark: str, limit_s: float) -> list[int]:
        found.append(mark)
        return [] if len(found) > 2 else [1]

    monkeypatch.setattr(leftovers, "end_marked", stuck)
    for _ in range(2):
        service.tick()
    assert [service.get(name).state for name in ("others", "then")] == ["starting", "queued"]
    assert f"only 3 can be used now ({device}: processes of an ended job still" in service.get("then").waits_for
    for _ in range(4):
        service.tick()
    assert service.get("then").waits_for.startswith("waits for 4 slots: 1 is free")
    assert found == ["left-lost/1"] * 3
    assert [record.message.startswith("left-lost is lost and pids") for record in caplog.records] == [True]
