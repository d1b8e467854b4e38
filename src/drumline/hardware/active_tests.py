"""GPUs made to work on request, in child processes that may crash or hang; no torch here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any

from drumline.hardware.active_verdicts import Outcome, TestResult, judge, judge_one
from drumline.hardware.claims import Claims
from drumline.hardware.nvml import INIT_LIMIT_S, Unavailable
from drumline.hardware.occupants import occupants
from drumline.hardware.records import GpuSample
from drumline.hardware.sample import read_snapshot
from drumline.hardware.session import open_session, within
from drumline.hardware.topology import Topology, read_topology

PROGRAM = ("-P", "-m", "drumline.bench.gpu_tests")
EACH_GPU = ("memory", "device_copy", "product")
"""Tests that need one GPU and nothing that it shares with others: all GPUs run them at the same time."""
TOGETHER = ("host_copy", "peer_copy", "all_reduce")
"""Tests that one process with all GPUs runs one after another."""
_LOOK_S = INIT_LIMIT_S
_KILL_LIMIT_S = 5.0
SHARE_ALONE = 0.6
"""Share of the time that the tests of each GPU alone may take."""

Watcher = Callable[[TestResult], None]


@dataclass(frozen=True)
class Setup:
    """How the tests are run; the defaults are for GPUs, the rest is for tests of these tests."""

    device: str = "cuda"
    """cpu: as many CPU devices as UUIDs are given."""
    sizes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of bench.gpu_work.Sizes."""
    program: Sequence[str] = PROGRAM
    nvml: Any = None


def run_tests(
    uuids: Sequence[str],
    limit_s: float = 300.0,
    *,
    on_result: Watcher | None = None,
    setup: Setup = Setup(),
) -> list[TestResult]:
    """Test these GPUs: memory, products, copies with host and peers, an all-reduce; at most limit_s seconds in all.

    A GPU on which anybody computes, or which a launch has claimed, is not tested, for a test of memory would take from
    it; the others are claimed meanwhile. Each
    result goes to on_result as soon as it is there, from other threads, one at a time; comparisons with like GPUs are
    only in the list. A test that hangs or crashes is a failed one; what it has kept from running is told as a warning.
    """
    with Claims("drumline gpus --test") as claims:
        return _tests(uuids, time.monotonic() + limit_s, on_result or (lambda result: None), setup, claims)


def _tests(uuids: Sequence[str], end: float, watch: Watcher, setup: Setup, claims: Claims) -> list[TestResult]:
    samples, topology = _look(setup)
    taken = _taken(uuids, samples, claims) if setup.device == "cuda" else {}
    results = [_busy(uuid, who) for uuid, who in taken.items()]
    for result in results:
        watch(result)
    free = [uuid for uuid in uuids if uuid not in {result.uuid for result in results}]
    lock = threading.Lock()
    outcomes: list[Outcome] = []

    def take(outcome: Outcome) -> None:
        with lock:
            outcomes.append(outcome)
            for result in judge_one(outcome, samples):
                watch(result)

    now = time.monotonic()
    _run([_Child((uuid,), EACH_GPU, setup, take) for uuid in free], now + SHARE_ALONE * (end - now))
    # One that hangs or crashes alone would only take the others along.
    sound = [uuid for uuid in free if not any(uuid in each.uuids and each.error for each in outcomes)]
    whole = [uuid for uuid in sound if not uuid.startswith("MIG-")]
    # CUDA shows a process one MIG instance at most.
    for group in (*((uuid,) for uuid in sound if uuid not in whole), whole):
        if group:
            _run([_Child(group, TOGETHER, setup, take)], end)
    return [*results, *judge(outcomes, samples, topology)]


def _taken(uuids: Sequence[str], samples: Mapping[str, GpuSample], claims: Claims) -> dict[str, str]:
    """Who computes on these GPUs, be it a launch of our own, or has claimed them; all others are claimed."""
    found = {}
    for uuid in uuids:
        sample = samples.get(uuid)
        if sample is not None and sample.processes is not None:
            others = tuple(replace(each, ours=each.pid == os.getpid()) for each in sample.processes)
            sample = replace(sample, processes=others)
        if sample is not None and (who := occupants(sample)) is not None:
            found[uuid] = who
    with claims.choosing():
        found |= claims.of_others(uuid for uuid in uuids if uuid not in found)
        found |= claims.take([uuid for uuid in uuids if uuid not in found])
    return found


def _run(children: Sequence[_Child], end: float) -> None:
    try:
        for child in children:
            child.follow(end)
    finally:
        for child in children:
            child.kill()


def _busy(uuid: str, taken: str) -> TestResult:
    return TestResult("free", uuid, "warn", None, "", None, f"not tested: {taken}", "test it when it is free")


def _look(setup: Setup) -> tuple[dict[str, GpuSample], Topology]:
    if setup.device == "cpu":
        return {}, Topology()
    samples = {sample.gpu.uuid: sample for sample in read_snapshot(setup.nvml, _LOOK_S).gpus}
    with open_session(setup.nvml) as session:
        topology = within(_LOOK_S, lambda: read_topology(session), setup.nvml)
    return samples, Topology() if isinstance(topology, Unavailable) else topology


class _Child:
    """One process that runs tests on some GPUs; started at once, followed to its end or limit."""

    def __init__(
        self, uuids: Sequence[str], tests: Sequence[str], setup: Setup, take: Callable[[Outcome], None]
    ) -> None:
        self._uuids, self._tests, self._take = tuple(uuids), tests, take
        self._begun: tuple[str, tuple[str, ...]] | None = None
        self._answered: set[str] = set()
        spec = {"device": setup.device, "num_gpus": len(uuids), "tests": list(tests), "parent": os.getpid()}
        environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "" if setup.device == "cpu" else ",".join(uuids)}
        self._complaints: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by follow
        self._process = subprocess.Popen(
            [sys.executable, *setup.program, json.dumps({**spec, "sizes": dict(setup.sizes)})],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env=environ,
        )
        self._reader = threading.Thread(target=self._read, name="drumline-gpu-tests", daemon=True)
        self._reader.start()

    def follow(self, end: float) -> None:
        """Wait for the process until `end` (time.monotonic), then kill it; what it did not answer is told."""
        self._reader.join(max(0.0, end - time.monotonic()))
        late = self._reader.is_alive()
        status = self.kill() if late else self._process.wait(_KILL_LIMIT_S)
        if late or status != 0:
            self._tell_the_rest(late, status)
        self._complaints.close()

    def kill(self) -> int | None:
        """End the process; its status, or None where a driver holds it."""
        self._process.kill()
        self._reader.join(_KILL_LIMIT_S)
        try:
            return self._process.wait(_KILL_LIMIT_S)
        except subprocess.TimeoutExpired:
            return None

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.endswith("\n"):  # else it was killed in the middle of it
                    self._note(json.loads(line))
        self._process.wait()

    def _note(self, record: Mapping[str, Any]) -> None:
        uuids = tuple(self._uuids[place] for place in record["gpus"])
        if "begin" in record:
            self._begun = (record["begin"], uuids)
            return
        self._begun = None
        self._answered.add(record["test"])
        self._take(Outcome(record["test"], uuids, record.get("facts"), record.get("error")))

    def _tell_the_rest(self, late: bool, status: int | None) -> None:
        """The test that hung or crashed, and those that it kept from running."""
        test, uuids = self._begun or ("start", self._uuids)
        if late:
            stuck = "" if status is not None else f", and process {self._process.pid} cannot be killed: a driver hangs"
            why = f"gave no answer in time{stuck}"
        else:
            self._complaints.seek(0)
            words = (self._complaints.read().strip().splitlines() or ["no message"])[-1]
            why = f"its process ended with status {status}: {words}"
        self._take(Outcome(test, uuids, error=why))
        for other in self._tests:
            if other != test and other not in self._answered:
                self._take(Outcome(other, self._uuids, not_run=f"{test} did not end"))
