"""The agent of one machine: torch elastic starts the workers and watches them, in a process of its own.

`python -m drumline.launcher.agent LAUNCH_JSON PARENT_PID`; the parent is start.py. What it says goes to logs/agent.log,
what became of the workers to logs/agent.json.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from drumline.launcher.notices import Notice, handled
from drumline.launcher.processes import die_with_parent, end_marked, pipe_of
from drumline.launcher.spec import LaunchSpec
from drumline.rundir import write_json

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

MONITOR_INTERVAL_S = 0.1
"""How often the agent looks whether a worker has ended."""
_POLL_S = 0.02
_KILL_LIMIT_S = 5.0
"""How long a killed process may stay in the kernel before it is left to itself."""


@dataclass(frozen=True)
class Death:
    """The end of one worker process."""

    rank: int
    pid: int
    exit_code: int
    """As subprocess gives it: negative for a signal."""
    time: float
    """When it was seen, at most MONITOR_INTERVAL_S late."""
    ended_by_us: bool
    """Whether it ended because the launcher told it to."""


@dataclass
class Watch:
    """Sees workers end before torch elastic reaps them, and ends those that remain."""

    pids: dict[int, int] = field(default_factory=dict)
    """Rank -> pid; each worker leads a process group of its own."""
    deaths: dict[int, Death] = field(default_factory=dict)
    ending: bool = False
    passed_on: set[signal.Signals] = field(default_factory=set)
    """Signals that the ranks were sent, to stop by themselves."""

    def look(self, *, ended_by_us: bool = False) -> None:
        """Note who has ended since the last look."""
        ended_by_us = ended_by_us or bool(self.passed_on)
        for rank, pid in self._running():
            try:
                # WNOWAIT leaves the process for torch elastic, which keeps no time and no order of its own.
                found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                # Reaped unseen: it took longer than _KILL_LIMIT_S to go, and torch elastic waited for it.
                self.deaths[rank] = Death(rank, pid, -signal.SIGKILL, time.time(), ended_by_us=True)
                continue
            if found is not None:
                code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
                self.deaths[rank] = Death(rank, pid, code, time.time(), ended_by_us)

    @property
    def hinders(self) -> bool:
        """Whether a worker has failed so that the others must end too: after a signal not by that signal's own doing.

        A rank that it ends at once, or that ends as shells say (128 and its number), leaves the others their time.
        """
        expected = {code for number in self.passed_on for code in (-number, 128 + number)}
        return any(death.exit_code not in expected | {0} for death in self.deaths.values())

    @property
    def over(self) -> bool:
        """Whether every worker is known to have ended."""
        return not self._running()

    def pass_on(self, number: signal.Signals) -> None:
        """Send a signal to each worker that runs, not to what it has started: those it has to end by itself."""
        self.look()
        self.passed_on.add(number)
        for _, pid in self._running():
            os.kill(pid, number)

    def end(self, number: signal.Signals, grace_s: float) -> None:
        """Send a signal to the group of each worker that runs, and kill those that run after grace_s seconds.

        torch elastic's own wait after a failure is 30 s and has no setting.
        """
        grace_s = 0.0 if self.ending else grace_s  # told again while ending: at once
        self.ending = True
        self.look()
        self._send(number)
        self._await(grace_s)
        self._send(signal.SIGKILL)
        self._await(_KILL_LIMIT_S)

    def _await(self, limit_s: float) -> None:
        limit = time.monotonic() + limit_s
        while not self.over and time.monotonic() < limit:
            time.sleep(_POLL_S)
            self.look(ended_by_us=True)

    def _running(self) -> list[tuple[int, int]]:
        return [(rank, pid) for rank, pid in self.pids.items() if rank not in self.deaths]

    def _send(self, number: signal.Signals) -> None:
        for _, pid in self._running():
            os.killpg(pid, number)  # nobody has reaped it, so the number is still its own


class Stops:
    """What signals have asked of the agent, which has them in its handler and passes them on between two looks."""

    def __init__(self) -> None:
        self.notice = Notice()
        self._waiting: list[signal.Signals] = []
        self._since: float | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """As a handler. A second one of a kind says nothing: where it is to be quick, the launcher kills this agent."""
        if self.notice.take(number) == "new":
            self._waiting.append(signal.Signals(number))

    def pass_on(self, watch: Watch, grace_s: float) -> None:
        """Pass on what has come; workers that run grace_s seconds after the first are killed."""
        while self._waiting:
            watch.pass_on(self._waiting.pop(0))
            self._since = self._since or time.monotonic()
        if self._since is not None and time.monotonic() > self._since + grace_s:
            watch.end(signal.SIGKILL, 0.0)


@dataclass
class Report:
    """What agent.json holds."""

    started: float
    ended: float = 0.0
    deaths: list[Death] = field(default_factory=list)
    signal: str | None = None
    """The first signal that told the agent to stop."""
    error: str | None = None
    """Why the agent itself failed."""
    stragglers: list[int] = field(default_factory=list)
    """Pids of processes that had outlived their workers and were killed."""


class Streams:
    """Sends the agent's own output to its log, and gives the launcher's streams back while workers are started."""

    def __init__(self, log: Path) -> None:
        self._saved = {number: os.dup(number) for number in (1, 2)}
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._to_log()

    def _to_log(self) -> None:
        for number in self._saved:
            os.dup2(self._log, number)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Workers that are started inside inherit what the launcher had as standard output and error."""
        for number, saved in self._saved.items():
            os.dup2(saved, number)
        try:
            yield
        finally:
            self._to_log()


def main(arguments: list[str]) -> int:
    """Run the workers to their end; 0 if the agent did its work, whatever became of the workers."""
    spec_path, parent = Path(arguments[0]), int(arguments[1])
    die_with_parent(signal.SIGTERM, parent)
    spec, launch_id = LaunchSpec.read(spec_path)
    log = spec.run.logs / "agent.log"
    streams = Streams(log)
    logging.basicConfig(filename=log, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    watch, report, stops = Watch(), Report(started=time.time()), Stops()

    def hear(number: int, frame: FrameType | None) -> None:
        if os.getppid() != parent and not watch.pids:
            os._exit(1)  # there are no workers to end, and to import torch first takes many seconds on a busy machine
        stops.handle(number, frame)

    # SIGTERM also where it is none of them: the kernel sends it when the launcher has ended. To the end, since what
    # comes after the workers takes a moment and must not be cut short.
    with handled({*spec.stop_signals, "SIGTERM"}, hear):
        try:
            _run(spec, launch_id, Workers(watch, stops, streams, parent))
        except (Exception, KeyboardInterrupt) as error:
            report.error = f"{type(error).__name__}: {error}"
            logging.getLogger(__name__).error("the agent failed\n%s", traceback.format_exc())
        report.signal = None if stops.notice.first is None else stops.notice.first.name
        report.stragglers = end_marked(launch_id)
        pipe_of(spec).unlink(missing_ok=True)  # the launcher may have been killed
        report.deaths = list(watch.deaths.values())
        report.ended = time.time()
        write_json(spec.run.logs / "agent.json", asdict(report))
    return 0 if report.error is None else 1


@dataclass
class Workers:
    """What the agent of torch elastic is told to do with its workers."""

    watch: Watch
    stops: Stops
    streams: Streams
    parent: int

    @property
    def orphaned(self) -> bool:
        """Whether the launcher has ended."""
        return os.getppid() != self.parent

    def look(self, spec: LaunchSpec) -> bool:
        """See to the workers; whether all of them have ended."""
        watch = self.watch
        watch.look()
        if self.orphaned:
            watch.end(signal.SIGTERM, spec.failure_grace_s)
        self.stops.pass_on(watch, spec.stop_grace_s)
        if watch.hinders:
            watch.end(signal.SIGTERM, spec.failure_grace_s)
        return watch.over


def _run(spec: LaunchSpec, launch_id: str, workers: Workers) -> None:
    from torch.distributed.elastic.multiprocessing import SignalException

    # Of those that torch elastic would take for itself, and end all by, only one that nobody passes on is left to it.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"
    worker_spec = _worker_spec(spec, launch_id)
    agent = _make_agent(worker_spec, spec, workers)
    try:
        agent.run()
    except SignalException as stop:
        logging.getLogger(__name__).warning("stopped by %s", stop.sigval.name)
    finally:
        worker_spec.rdzv_handler.shutdown()


def _worker_spec(spec: LaunchSpec, launch_id: str) -> WorkerSpec:
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    # Port 0: the kernel chooses. The loopback address by number: a host's name may resolve nowhere, or elsewhere.
    parameters = RendezvousParameters("c10d", "127.0.0.1:0", launch_id, 1, 1, local_addr="127.0.0.1")
    child = ("-P", "-u", "-m", "drumline.launcher.child", str(spec.run.logs / "launch.json"), str(os.getpid()))
    return WorkerSpec(
        role="worker",
        local_world_size=spec.num_workers,
        rdzv_handler=get_rendezvous_handler(parameters),
        entrypoint=sys.executable,
        args=child,
        max_restarts=0,
        monitor_interval=MONITOR_INTERVAL_S,
    )


def _make_agent(worker_spec: WorkerSpec, spec: LaunchSpec, workers: Workers) -> LocalElasticAgent:
    """The local agent of torch elastic with our signals, exact deaths and the launcher's streams for rank 0."""
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SignalException

    class NoLogs(LogsSpecs):
        """No folders and no redirection by torch elastic: child.py opens the logs."""

        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            names = dict.fromkeys(envs, "")
            for environ in envs.values():
                environ["TORCHELASTIC_ERROR_FILE"] = ""
            return LogsDest(stdouts=names, stderrs=names, error_files=names)

        @property
        def root_log_dir(self) -> str:
            return str(spec.run.logs)

    class Agent(LocalElasticAgent):
        """Overrides the three steps that torch elastic's agent leaves to its subclasses."""

        def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
            if workers.stops.notice.first is not None:
                raise SignalException("before the workers were started", workers.stops.notice.first)
            with workers.streams.restored():
                pids: dict[int, int] = super()._start_workers(worker_group)
            workers.watch.pids = {worker_group.workers[local].global_rank: pid for local, pid in pids.items()}
            return pids

        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            if not workers.look(spec):
                # Not asking torch elastic here keeps it from reaping somebody whose end has not been noted.
                return RunResult(state=WorkerState.HEALTHY)
            result: RunResult = super()._monitor_workers(worker_group)
            return result

        def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, *args: Any, **kwargs: Any) -> None:
            workers.watch.end(death_sig, spec.failure_grace_s)
            super()._shutdown(death_sig, *args, **kwargs)

    return Agent(worker_spec, NoLogs())


if __name__ == "__main__":
    # All is written and nobody is left: to take torch down takes a second, and many on a busy machine, in which the
    # launcher waits, or is dead and its GPUs count as held.
    os._exit(main(sys.argv[1:]))
