"""Two machines on one store: what the one says of the other that is silent, and what becomes of its jobs then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from drumline.errors import Forbidden
from drumline.jobs.board import Board
from drumline.jobs.records import Job
from drumline.jobs.requests import Who
from drumline.jobs.results import DEVICE_SECONDS
from drumline.jobs.silence import silent_jobs, silent_s
from drumline.jobs.states import NODE_SILENT
from drumline.jobs.store import Change
from tests.unit.jobs.supervisor_in_hand import Service

ANN, BOB, ROOT = Who("ann"), Who("bob"), Who("root", "admin")
MINUTE_S = 60.0


@dataclass
class Machines:
    """Machine a, on which a job of ann's runs, and machine b."""

    a: Service
    b: Service

    @property
    def job(self) -> Job:
        return self.a.get("job")

    def board(self) -> Board:
        """Of b."""
        return Board(self.b.store, self.b.config)

    def tick(self, seconds: float, *living: Service, every_s: float = 5.0) -> None:
        """Let time pass on both; only the living ones look."""
        for _ in range(round(seconds / every_s)):
            for each in (self.a, self.b):
                each.uptime += every_s
                if each in living:
                    each.tick(0.0)

    def is_silent(self) -> bool:
        return self.job.reason == NODE_SILENT


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    a = Service(tmp_path / "a", "a")
    b = Service(tmp_path / "b", "b", a.store)
    a.add("job", devices=2)
    a.running("job")
    b.uptime = a.uptime
    yield Machines(a, b)
    for each in (a, b):
        each.supervisor.close()
    a.store.close()


def test_a_machine_that_has_died_is_told_of_and_its_job_is_never_ended_by_itself(machines: Machines) -> None:
    a, b = machines.a, machines.b
    machines.tick(20.0, a, b)
    leases = a.store.leases.all()
    machines.tick(40.0, b)
    assert not machines.is_silent(), "a restart of the service, or a pause of the machine, takes as long"
    machines.tick(40.0, b)
    assert (machines.job.state, machines.job.reason) == ("running", NODE_SILENT)
    assert machines.job.message.startswith("nobody has looked after it since 1970-01-01 00:17:0")
    assert machines.job.message.endswith("UTC: node a does not answer")
    assert [job.id for job in silent_jobs(b.store, "b")] == ["job"]
    machines.tick(100 * MINUTE_S, b, every_s=600.0)
    assert machines.job.state == "running"
    assert a.store.leases.all() == leases
    b.add("next", devices=4)
    b.tick()
    assert b.get("next").state == "starting", "it keeps no other machine from its work"


def test_the_limit_is_no_less_than_a_lease(machines: Machines) -> None:
    policy = machines.b.config.scheduling
    assert silent_s(policy) == policy.lease_s == 30.0
    assert silent_s(policy.model_copy(update={"lease_s": 1.0})) == 30.0
    assert silent_s(policy.model_copy(update={"lease_s": 600.0})) == 600.0


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_a_clock_that_is_wrong_makes_no_machine_silent(machines: Machines, ahead_s: float) -> None:
    machines.b.set += ahead_s
    for _ in range(10):
        machines.tick(20.0, machines.a, machines.b)
        assert not machines.is_silent()


def test_signs_of_life_without_leases_and_leases_without_signs_are_enough(machines: Machines) -> None:
    a, b = machines.a, machines.b
    for _ in range(20):  # as of a service that cannot renew: its other changes come through
        machines.tick(10.0, b)
        b.store.services.heartbeat("other", "a", 1, a.now)
    assert not machines.is_silent()
    for _ in range(20):
        machines.tick(10.0, b)
        b.store.leases.renew("a", ["job"], a.now + 30.0)
    assert not machines.is_silent()


def test_a_service_that_has_ended_in_order_has_left_its_jobs_alone_too(machines: Machines) -> None:
    machines.a.supervisor.close()
    machines.tick(100.0, machines.b)
    assert machines.is_silent()
    assert "since 1970-01-01 00:17" in machines.job.message


def test_a_machine_that_answers_again_goes_on_with_its_job(machines: Machines) -> None:
    before = machines.job
    machines.tick(100.0, machines.b)
    assert machines.is_silent()
    machines.tick(20.0, machines.a, machines.b)
    assert (machines.job.state, machines.job.reason) == ("running", None)
    assert (machines.job.message, machines.job.fix, machines.job.attempt) == ("", "", before.attempt)
    assert min(lease.expires for lease in machines.a.store.leases.all()) > machines.a.now
    machines.board().cancel("job", ANN)
    assert machines.job.state == "stopping"


def test_a_cancel_ends_a_job_of_a_silent_machine_as_lost(machines: Machines) -> None:
    a, b = machines.a, machines.b
    assert machines.board().cancel("job", ANN).state == "stopping", "nobody knows yet"
    machines.tick(100.0, b)
    assert (machines.job.state, machines.is_silent()) == ("stopping", True)
    with pytest.raises(Forbidden):
        machines.board().cancel("job", Who("*", "viewer"))
    ended = machines.board().cancel("job", ANN)
    assert ended == machines.job
    assert (ended.state, ended.reason, ended.ended is not None) == ("lost", "node_lost", True)
    assert ended.message.startswith("given up by ann; cancelled by ann; nobody has looked after it since ")
    assert ended.result["success"] is False
    assert a.store.leases.all() == ()
    # Of the time in which nobody knows, no more than the last lease counts.
    assert 25.0 < ended.used_s < 35.0
    assert ended.progress[DEVICE_SECONDS] == 2 * ended.used_s
    assert machines.board().cancel("job", ANN) == ended
    assert {(each.event, each.who) for each in a.store.log.audits().items if each.what == "job"} >= {
        ("job.give_up", "ann")
    }


def test_its_own_machine_gives_no_job_up(machines: Machines) -> None:
    machines.tick(100.0, machines.b)
    Board(machines.a.store, machines.a.config).cancel("job", ANN)
    assert machines.job.state == "stopping"


def test_each_gives_up_what_is_theirs(machines: Machines) -> None:
    machines.tick(100.0, machines.b)
    assert machines.board().give_up(lambda job: True, BOB) == ()
    assert machines.board().give_up(lambda job: job.node == "c", ROOT) == ()
    assert [job.id for job in machines.board().give_up(lambda job: job.node == "a", ROOT)] == ["job"]


def test_end_and_leases_are_one_change(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    machines.tick(100.0, machines.b)
    before, leases = machines.job, machines.a.store.leases.all()

    def fail(self: Change, job_id: str) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(Change, "release", fail)
    with pytest.raises(ZeroDivisionError):
        machines.board().cancel("job", ANN)
    assert (machines.job, machines.a.store.leases.all()) == (before, leases)


def test_time_in_which_nobody_could_have_heard_makes_no_machine_silent(machines: Machines) -> None:
    """As while the store was away, or while this machine stood still: it may be the first to look again."""
    a, b = machines.a, machines.b
    machines.tick(20.0, a, b)
    machines.tick(100 * MINUTE_S, every_s=600.0)
    machines.tick(20.0, b)
    assert not machines.is_silent()
    machines.tick(20.0, b)
    assert machines.is_silent(), "from then on it counts"


def test_several_who_say_so_say_it_once(machines: Machines) -> None:
    third = Service(machines.b.executor.jobs_dir.parent, "c", machines.b.store)
    for _ in range(25):
        machines.tick(5.0, machines.b)
        third.tick(5.0)
    told = machines.job
    assert machines.is_silent()
    for _ in range(25):
        machines.tick(5.0, machines.b)
        third.tick(5.0)
    assert machines.job == told
    third.supervisor.close()
