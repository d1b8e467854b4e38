"""Starts the workers of one machine and waits for them: the launcher's side, without torch."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from drumline.errors import HardwareError, RunDirExists
from drumline.hardware.host import cpu_cores
from drumline.hardware.inventory import named_gpus
from drumline.hardware.records import Hardware
from drumline.launcher.failures import Failure, earliest, failure_of_exit, first_failure
from drumline.launcher.notices import Notice, handled
from drumline.launcher.processes import end_marked, held_pipe
from drumline.launcher.spec import MARK, LaunchSpec, stopped_file
from drumline.rundir import RunDir, read_json

if TYPE_CHECKING:
    from drumline.config.schema import HardwareConfig

LAUNCHES = Path("runs/launch")
"""Where launches of scripts and functions keep their logs; a script's Trainer makes its own run directory."""
INTERRUPTED = 3
"""Exit status of a launch that was stopped from outside."""
_LOOK_S = 0.5
_AGENT_MARGIN_S = 10.0
"""What the agent may need beyond the workers' own grace before it counts as stuck."""
_SEEN_LATE_S = 0.15
"""A death is seen up to this much after it happened (agent.MONITOR_INTERVAL_S), a recorded failure is not."""


@dataclass(frozen=True)
class Workers:
    """How many workers a machine gets, and their GPUs as LaunchSpec.gpus takes them."""

    num: int
    gpus: tuple[str, ...]


def choose_workers(config: HardwareConfig, hardware: Hardware) -> Workers:
    """Pure: one worker a GPU that `config` takes of these; without GPU num_processes, one unless said.

    Raises HardwareError where no GPU is there though device is cuda or count says how many.
    """
    if config.device == "cpu" and config.count is None:
        return Workers(config.num_processes or 1, ())
    gpus = tuple(gpu.uuid for gpu in named_gpus(hardware, config.gpus, config.exclude, config.count))
    if config.device == "cpu" or not gpus:
        if config.count is not None:
            what = f"hardware.count={config.count}, but "
            what += "hardware.device=cpu" if config.device == "cpu" else f"no GPU is visible ({hardware.gpu_source})"
            raise HardwareError(what, "leave hardware.count out, or see drumline doctor")
        if config.device == "cuda":
            raise HardwareError(
                f"hardware.device=cuda, but no GPU is visible ({hardware.gpu_source})",
                "see drumline doctor, or set hardware.device=cpu",
            )
        return Workers(config.num_processes or 1, ())
    return Workers(len(gpus), gpus)


@dataclass(frozen=True)
class Result:
    """How a launch ended."""

    exit_status: int
    """0 if every worker ended well; else the first failing rank's, or INTERRUPTED if something stopped them before."""
    failure: Failure | None = None
    """The first failing rank's; None where nothing failed, or only by the signal."""
    interrupted: signal.Signals | None = None
    """The signal that this process got meanwhile and passed on. The caller decides whether to raise it again."""
    stopped: str | None = None
    """What stopped the ranks from outside, wherever it came from, if they have saved their run; None: nothing did."""
    leftovers: tuple[int, ...] = ()
    """Pids of processes that had outlived their workers and were ended."""


def start_workers(spec: LaunchSpec) -> Result:
    """Start the workers, wait until all have ended, and say how; nothing of the launch is left running then.

    In the main thread the spec's stop signals are passed on to the workers, each once; a second SIGINT or SIGTERM, or
    a worker that does not end within stop_grace_s, makes it SIGKILL for all. Nothing is printed here.
    """
    _forget_earlier(spec)
    launch_id = uuid.uuid4().hex
    path = spec.write(launch_id)
    command = [sys.executable, "-P", "-m", "drumline.launcher.agent", str(path.resolve()), str(os.getpid())]
    stop = _Stop()
    left: list[int] = []
    with held_pipe(spec), handled(spec.stop_signals, stop.handle):
        # A process group of its own: Ctrl-C in the terminal reaches this process alone, which passes it on once.
        agent = subprocess.Popen(command, env=_environment(spec, launch_id), process_group=0)
        stop.agent = agent
        try:
            _wait(agent, stop, spec)
        finally:
            if agent.poll() is None:
                agent.kill()
                agent.wait()
            if agent.returncode != 0:
                left = end_marked(launch_id)
    return _outcome(spec, agent.returncode, stop, left)


def launch_directory(stem: str) -> RunDir:
    """Make the directory of a launch, runs/launch/<stem>-<date>-<time>, with a number behind it if that is taken."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", stem) + time.strftime("-%Y%m%d-%H%M%S")
    number = 1
    while True:
        try:
            return RunDir.create(LAUNCHES / (name if number == 1 else f"{name}-{number}"))
        except RunDirExists:
            number += 1


@dataclass
class _Stop:
    """What signals have asked for."""

    notice: Notice = field(default_factory=Notice)
    agent: subprocess.Popen[bytes] | None = None
    again: bool = False
    waiting: list[signal.Signals] = field(default_factory=list)

    def handle(self, number: int, frame: FrameType | None) -> None:
        taken = self.notice.take(number)
        self.again |= taken == "again"
        if taken == "new":
            self.waiting.append(signal.Signals(number))
            self.forward()

    def forward(self) -> None:
        while self.agent is not None and self.waiting:
            self.agent.send_signal(self.waiting.pop(0))


def _wait(agent: subprocess.Popen[bytes], stop: _Stop, spec: LaunchSpec) -> None:
    stop.forward()  # one may have come while the agent was being started
    while True:
        try:
            agent.wait(timeout=_LOOK_S)
            return
        except subprocess.TimeoutExpired:
            limit = stop.notice.time + spec.stop_grace_s + _AGENT_MARGIN_S
            if stop.again or (stop.notice.first is not None and time.time() > limit):
                agent.kill()  # the kernel takes the workers with it, end_marked whatever they had started


def _environment(spec: LaunchSpec, launch_id: str) -> dict[str, str]:
    environ = {**os.environ, MARK: launch_id}
    # Each worker would take a thread a core for its products, and N workers would fight for them.
    environ.setdefault("OMP_NUM_THREADS", str(max(1, cpu_cores() // spec.num_workers)))
    if spec.gpus is not None:
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(spec.gpus)
    return environ


def _forget_earlier(spec: LaunchSpec) -> None:
    """Remove what an earlier launch in the same directory recorded; logs are kept and continued."""
    logs = spec.run.logs
    for pattern in ("agent.json", "rank_*.error.json", "rank_*.stopped.json", "rank_*.result.pkl"):
        for path in logs.glob(pattern):
            path.unlink(missing_ok=True)


def _outcome(spec: LaunchSpec, returncode: int, stop: _Stop, left: list[int]) -> Result:
    report_file = spec.run.logs / "agent.json"
    report: dict[str, Any] | None = read_json(report_file) if report_file.exists() else None
    leftovers = (*(report["stragglers"] if report else ()), *left)
    return replace(_result(spec, returncode, stop, report), leftovers=leftovers)


def _result(spec: LaunchSpec, returncode: int, stop: _Stop, report: dict[str, Any] | None) -> Result:
    recorded = first_failure(spec.run.error_of(rank) for rank in range(spec.num_workers))
    failure = earliest([*([recorded] if recorded else []), *_unrecorded(spec, report)])
    asked, stopped = stop.notice.first, _stopped(spec)
    if failure is not None and asked is not None and failure.time >= stop.notice.time and _by_signal(failure):
        failure = None
    if failure is None and (asked is not None or stopped is not None):
        ended_well = stopped is None and report is not None and _all_zero(report, spec.num_workers)
        return Result(0 if ended_well else INTERRUPTED, None, asked, stopped)
    if failure is None and (returncode != 0 or report is None or report["signal"]):
        failure = _agent_failure(report, returncode)
    return Result(failure.exit_status if failure else 0, failure, asked)


def _stopped(spec: LaunchSpec) -> str | None:
    """Why the ranks stopped and saved, by the first that says so."""
    files = [file for rank in range(spec.num_workers) if (file := stopped_file(spec.run, rank)).exists()]
    return read_json(files[0])["reason"] if files else None


def _by_signal(failure: Failure) -> bool:
    """Whether it may well be how a program ends on a signal: killed by it, by sys.exit, or bereft of another rank."""
    return failure.is_consequence or failure.code in ("exit", "signal")


def _unrecorded(spec: LaunchSpec, report: dict[str, Any] | None) -> Iterator[Failure]:
    """Failures of ranks that left no error file and were not ended by us: killed, crashed or out by os._exit."""
    for death in report["deaths"] if report else []:
        if death["exit_code"] != 0 and not death["ended_by_us"] and not spec.run.error_of(death["rank"]).exists():
            yield failure_of_exit(death["rank"], death["exit_code"], death["time"] - _SEEN_LATE_S)


def _all_zero(report: dict[str, Any], num_workers: int) -> bool:
    codes = [death["exit_code"] for death in report["deaths"]]
    return len(codes) == num_workers and not any(codes)


def _agent_failure(report: dict[str, Any] | None, returncode: int) -> Failure:
    now = time.time()
    if report and report["error"]:
        return Failure(None, now, "launch", 1, str(report["error"]))
    if report and report["signal"]:
        return Failure(None, now, "signal", 1, f"its agent was stopped by {report['signal']} from outside")
    ended = failure_of_exit(None, returncode, now)
    return Failure(None, now, ended.code, 1, f"its agent ended early: {ended.message}")
