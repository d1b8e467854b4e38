"""A supervisor that is gone in the middle of any line is followed by one that goes on from what is written down."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from drumline.jobs import executor, keeper_files, supervisor
from drumline.jobs.store import change
from drumline.rundir import read_lines
from tests.cli.supervised import Supervised

# A supervisor that is killed just after it has started a keeper knows nothing of it.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")

FILES = frozenset(str(module.__file__) for module in (executor, supervisor, change, keeper_files))
LINES = 1500
"""About as many lines as are gone through between a job's beginning and its end."""


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


@contextmanager
def killed_after(num_lines: int) -> Iterator[None]:
    """Inside, this thread is at its end after so many lines of the code that looks after jobs."""
    left = num_lines

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise Killed
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def disturbed(service: Supervised, name: str, chance: random.Random) -> int:
    """Bring a job to its end with supervisors that are killed again and again; returns how many were."""
    num_killed = 0
    while not service.get(name).has_ended:
        try:
            with killed_after(chance.randrange(LINES)):
                service.until_ended(name)
        except Killed:
            num_killed += 1
            service.executor.close()
            service.begin()
    return num_killed


@pytest.mark.parametrize("seed", range(3))
def test_a_job_begins_once_and_ends_as_it_would_have(seed: int, tmp_path: Path) -> None:
    service = Supervised(tmp_path / "data")
    chance = random.Random(seed)
    try:
        for name in ("a", "b"):
            service.add(name, steps=3, export=True)
        num_killed = disturbed(service, "a", chance) + disturbed(service, "b", chance)
        for name in ("a", "b"):
            job = service.get(name)
            assert (job.state, job.attempt, job.message) == ("succeeded", 1, ""), num_killed
            begun = [
                line["begun"] for line in read_lines(service.executor.folder(name) / "ledger.jsonl") if "begun" in line
            ]
            assert begun == [1]
            assert job.result["model_path"] == str(service.executor.folder(name) / "model")
        assert service.store.leases.all() == ()
        assert not (service.folder / "violations").exists()
        assert num_killed > 0
    finally:
        service.close()


@pytest.mark.parametrize("seed", range(3))
def test_one_that_is_to_be_cancelled_is(seed: int, tmp_path: Path) -> None:
    service = Supervised(tmp_path / "data")
    try:
        service.add("a", does="long", devices=2)
        service.until_it_works("a")
        service.ask("a", "cancel")
        disturbed(service, "a", random.Random(seed))
        job = service.get("a")
        assert (job.state, job.reason, job.attempt) == ("cancelled", "cancelled", 1)
        assert service.processes(job) == []
        assert service.store.leases.all() == ()
    finally:
        service.close()
