"""Runs that hang: each ends within the limit and ten seconds, and every rank says who was where.

Ranks of their own processes: some of them are stopped, killed, or stuck where no exception reaches them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore

from drumline.engine.hang import Pulse
from drumline.errors import HangError
from drumline.launcher.world import detect_world
from drumline.parallel.groups import open_groups
from drumline.rundir import RunDir, read_json, read_lines
from tests.rank_pool import RankError, RankPool
from tests.ranks import hanging
from tests.ranks.failing import failures_of

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests/ranks/hanging.py"


class Ranks:
    """Two processes of the script; killed where the test ends before them."""

    def __init__(self, folder: Path, how: str) -> None:
        self.run = RunDir(folder / "run")
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        command = [sys.executable, str(SCRIPT), how, str(self.run.path)]
        pipe = subprocess.PIPE
        self.processes = [
            subprocess.Popen(command, env=self._environment(rank), stdout=pipe, stderr=pipe, text=True)
            for rank in range(2)
        ]

    def _environment(self, rank: int) -> dict[str, str]:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        elastic = {
            "TORCHELASTIC_RUN_ID": "hang",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": self._store.port,
            "PYTHONPATH": ROOT,
        }
        return {**os.environ, **{name: str(value) for name, value in {**place, **elastic}.items()}}

    def end(self) -> tuple[list[int], list[str]]:
        """Exit codes, and what was written to standard error, without the rank that torch puts before each line."""
        written = [process.communicate(timeout=90)[1] for process in self.processes]
        errors = [text.replace(f"[rank{rank}]: ", "") for rank, text in enumerate(written)]
        return [process.returncode for process in self.processes], errors

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


@pytest.fixture
def started(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ranks]:
    ranks = Ranks(tmp_path, request.param)
    yield ranks
    ranks.close()


def hang_of(ranks: Ranks) -> dict[str, Any]:
    """The one event of the hang, which came in time."""
    (event,) = [record for record in read_lines(ranks.run.events) if record["event"] == "hang"]
    *_, last = read_lines(ranks.run.metrics)
    # Written when all is said; what is left then is Python's own end, which the launcher cuts short.
    assert ranks.run.exit.stat().st_mtime - last["time"] < hanging.LIMIT_S / 2 + 10
    assert "no progress for 3 s" in event["message"]
    assert read_json(ranks.run.exit)["exit_status"] == 1
    return event


def line_of(text: str) -> str:
    """file:line of this piece of the script."""
    (found,) = [number for number, line in enumerate(SCRIPT.read_text().splitlines(), 1) if text in line]
    return f"{SCRIPT}:{found}"


@pytest.mark.parametrize("started", ["sleep"], indirect=True)
def test_a_callback_that_sleeps_on_one_rank(started: Ranks) -> None:
    codes, errors = started.end()
    event = hang_of(started)
    assert codes == [1, 1]
    assert "rank 1 did not arrive, rank 0 waits" in event["message"]
    assert "rank 1 is in a callback: callbacks after update 2, step 2" in event["message"]
    assert f"at {line_of('time.sleep(60)  # in a callback')} in hang" in event["message"]
    for error in errors:  # each rank's own exception has all of it
        assert f"HangError: {event['message']}" in error
    assert ", in hang\n" in errors[1]


@pytest.mark.system
@pytest.mark.parametrize("started", ["SIGSTOP"], indirect=True)
def test_a_stopped_rank(started: Ranks) -> None:
    codes, errors = started.end()
    event = hang_of(started)
    assert codes[0] == 1 and codes[1] != 0
    assert "rank 1 is stopped by SIGSTOP or a debugger" in event["message"]
    assert "step 2" in event["message"] and f"at {line_of('time.sleep(0.1)')} in hang" in event["message"]
    assert f"HangError: {event['message']}" in errors[0]


@pytest.mark.system
@pytest.mark.parametrize("started", ["SIGKILL"], indirect=True)
def test_a_killed_rank_is_told_of_by_where_it_was_seen_last(started: Ranks) -> None:
    codes, errors = started.end()
    assert codes == [1, -signal.SIGKILL]
    message = read_json(started.run.exit)["message"]
    seen = f"callbacks after update 2, step 2, at {line_of('time.sleep(0.1)')} in hang"
    assert "rank 1" in message and f"last seen: {seen}" in message
    assert f"last seen: rank 1: {seen}" in errors[0]
    assert not any(record["event"] == "hang" for record in read_lines(started.run.events))


@pytest.mark.system
@pytest.mark.parametrize("started", ["mismatch"], indirect=True)
def test_collectives_that_do_not_match(started: Ranks) -> None:
    codes, errors = started.end()
    event = hang_of(started)
    assert codes == [1, 1]
    assert "all 2 ranks wait for each other, in different places" in event["message"]
    for rank, collective in enumerate(("all_reduce", "all_gather")):
        where = line_of(f"dist.{collective}(")
        assert f"rank {rank} is in the collective {collective}: callbacks after update 2, step 2" in event["message"]
        assert f"at {where} in hang" in event["message"]
        assert f"gloo:{collective} (number" in event["message"]
        assert event["message"] in errors[rank]
    assert "called on some of them only, or in another order" in event["fix"]


@pytest.mark.system
@pytest.mark.parametrize("started", ["native"], indirect=True)
def test_a_collective_that_one_rank_calls_alone(started: Ranks) -> None:
    codes, _ = started.end()
    event = hang_of(started)
    assert codes[1] == 1 and codes[0] != 0
    assert "all 2 ranks wait for each other, in different places" in event["message"]
    assert "rank 1 is in the collective barrier: callbacks after update 2, step 2" in event["message"]
    assert "rank 0 is in a backward pass in a collective: update 3, micro-batch 1 of 1, step 2" in event["message"]


@pytest.mark.system
@pytest.mark.parametrize("started", ["loader"], indirect=True)
def test_a_loader_process_that_hangs(started: Ranks) -> None:
    codes, _ = started.end()
    event = hang_of(started)
    assert codes == [1, 1]
    assert "rank 1 did not arrive, rank 0 waits" in event["message"]
    assert "rank 1 reads rows: update 4, reading window 4 of epoch 0, step 3" in event["message"]


def work_on_rank_zero(limit_s: float, *, says_so: bool) -> None:
    """Rank 0 works for three times the limit, in small steps that are none of the pulse's; rank 1 waits for it."""
    world = detect_world()
    # Nobody waits longer than for ranks that are not busy.
    groups = open_groups(world, torch.device("cpu"), "gloo", limit_s if says_so else 30)
    pulse = Pulse(groups, limit_s)
    try:
        with pulse.watching():
            if world.rank == 0:
                with pulse.busy("writing a checkpoint") if says_so else nullcontext():
                    until = time.monotonic() + 3 * limit_s
                    while time.monotonic() < until:
                        time.sleep(0.1)
            groups.side.exchange("after it")
    except HangError:
        groups.abort()
        raise
    groups.close()


def test_long_work_of_rank_zero_is_no_hang_while_its_heart_beats(ranks: RankPool) -> None:
    ranks.run(2, partial_of_work, True)


def test_nobody_waits_longer_for_a_rank_that_is_not_busy(ranks: RankPool) -> None:
    with pytest.raises(RankError) as caught:
        ranks.run(2, work_unseen)
    assert caught.value.type_name == "GroupError" and "waited 1 s at 'after it' for rank 0" in caught.value.message


def work_unseen() -> None:
    """Rank 0 works longer than the others wait, and does not say so; its heart beats all the same."""
    world = detect_world()
    groups = open_groups(world, torch.device("cpu"), "gloo", 1)
    try:
        with Pulse(groups, 600.0).watching():
            if world.rank == 0:
                until = time.monotonic() + 9  # to see and to wait takes the other rank seven
                while time.monotonic() < until:
                    time.sleep(0.1)
            groups.side.exchange("after it")
    finally:
        groups.abort()


def test_and_is_one_where_it_is_not_known_as_such(ranks: RankPool) -> None:
    for ending in failures_of(ranks, 2, partial_of_work, False):
        assert ending.name == "HangError"
        assert "rank 0 did not arrive, rank 1 waits" in ending.message
        assert " in work_on_rank_zero" in ending.message and "rank 1 waits for the other ranks" in ending.message


def partial_of_work(says_so: bool) -> None:
    work_on_rank_zero(1.2, says_so=says_so)


def slow_on_rank_one(directory: str) -> None:
    """Updates of two micro-batches, the first of which takes rank 1 longer."""
    world = detect_world()
    groups = open_groups(world, torch.device("cpu"), "gloo", 30)
    pulse = Pulse(groups, 6.0)  # a beat each half second
    pulse.period_s, pulse.directory = 0.2, RunDir(Path(directory))
    groups.side.exchange("begin")
    with pulse.watching():
        for step in range(60):
            for part in pulse.through(("first", "last"), f"update {step + 1}"):
                if part == "first":
                    time.sleep(0.05 if world.rank == 1 else 0.002)
            groups.side.exchange("update")
            pulse.updated(step + 1)
    groups.close()


def test_a_straggler_is_named(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(2, slow_on_rank_one, str(tmp_path))
    (event,) = read_lines(tmp_path / "events.jsonl")
    assert (event["event"], event["rank"]) == ("straggler", 1)
    assert event["own_s"] > 0.04 > event["median_s"] + 0.01
