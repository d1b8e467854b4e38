"""A machine that was cut off and given up: what it finds once it is back. Real keepers, two machines' supervisors."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumline.config.service import ServiceConfig
from drumline.jobs.adoption import end_marked
from drumline.jobs.board import Board
from drumline.jobs.requests import Who
from drumline.jobs.silence import Neighbours, silent_s
from tests.cli.supervised import NODE, Supervised


def give_up(service: Supervised, name: str) -> None:
    """What another machine does that has not heard of this one for long, and then its owner."""
    at = [0.0]
    config = ServiceConfig(data_dir=service.folder / "elsewhere", node="elsewhere")
    neighbours = Neighbours(service.store, "elsewhere", config.scheduling, lambda: at[0])
    [lease] = service.store.leases.all(NODE)
    for part in (0.0, 0.5, 1.0):
        at[0] = part * silent_s(config.scheduling)
        neighbours.look(lease.expires + 1000.0)
    assert service.get(name).reason == "node_silent"
    assert Board(service.store, config).cancel(name, Who("ann")).state == "lost"


@pytest.mark.parametrize("restarted", [False, True])
def test_its_processes_end_and_the_next_job_has_the_device_alone(restarted: bool, tmp_path: Path) -> None:
    service = Supervised(tmp_path / "data", num_slots=1)
    try:
        service.add("given-up", does="deaf")
        job = service.until_it_works("given-up")
        give_up(service, "given-up")
        # Nobody has told the keeper, its command and the child of that.
        service.until("given-up", lambda _: len(service.processes(job)) >= 3)
        if restarted:
            service.executor.close()
            service.begin()
        service.add("next")
        assert service.until_ended("next").state == "succeeded"
        ended = service.get("given-up")
        assert (ended.state, ended.reason) == ("lost", "node_lost")
        assert service.processes(job) == []
        assert not (service.folder / "violations").exists()
    finally:
        end_marked("given-up/1")
        service.close()
