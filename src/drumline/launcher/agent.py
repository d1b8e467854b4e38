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
from typing import TYPE_CHECKING, Any

from drumline.launcher.processes import die_with_parent, end_marked
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

    def look(self, *, ended_by_us: bool = False) -> None:
        """Note who has ended since the last look."""
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
    def failed(self) -> bool:
        """Whether a worker is known to have failed."""
        return any(death.exit_code != 0 for death in self.deaths.values())

    @property
    def over(self) -> bool:
        """Whether every worker is known to have ended."""
        return not self._running()

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


@dataclass
class Report:
    """What agent.json holds."""

    started: float
    ended: float = 0.0
    deaths: list[Death] = field(default_factory=list)
    signal: str | None = None
    """The signal that told the agent to stop."""
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
    watch, report = Watch(), Report(started=time.time())
    try:
        _run(spec, launch_id, watch, streams, parent, report)
    except (Exception, KeyboardInterrupt) as error:
        report.error = f"{type(error).__name__}: {error}"
        logging.getLogger(__name__).error("the agent failed\n%s", traceback.format_exc())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # what is left takes a moment and must not be cut short
    report.stragglers = end_marked(launch_id)
    report.deaths = list(watch.deaths.values())
    report.ended = time.time()
    write_json(spec.run.logs / "agent.json", asdict(report))
    return 0 if report.error is None else 1


def _run(spec: LaunchSpec, launch_id: str, watch: Watch, streams: Streams, parent: int, report: Report) -> None:
    from torch.distributed.elastic.multiprocessing import SignalException

    # SIGHUP stays as it was found, so that nohup works; the launcher hears of the others and passes them on.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGTERM,SIGINT"
    worker_spec = _worker_spec(spec, launch_id)
    agent = _make_agent(worker_spec, spec, watch, streams, parent)
    try:
        agent.run()
    except SignalException as stop:
        report.signal = stop.sigval.name
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


def _make_agent(
    worker_spec: WorkerSpec, spec: LaunchSpec, watch: Watch, streams: Streams, parent: int
) -> LocalElasticAgent:
    """The local agent of torch elastic with a short grace, exact deaths and the launcher's streams for rank 0."""
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

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
            with streams.restored():
                pids: dict[int, int] = super()._start_workers(worker_group)
            watch.pids = {worker_group.workers[local].global_rank: pid for local, pid in pids.items()}
            return pids

        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            watch.look()
            if watch.failed:
                watch.end(signal.SIGTERM, spec.failure_grace_s)
            elif not watch.over:
                # Not asking torch elastic here keeps it from reaping somebody whose end has not been noted.
                return RunResult(state=WorkerState.HEALTHY)
            result: RunResult = super()._monitor_workers(worker_group)
            return result

        def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, *args: Any, **kwargs: Any) -> None:
            orphaned = os.getppid() != parent
            watch.end(death_sig, spec.failure_grace_s if orphaned else spec.stop_grace_s)
            super()._shutdown(death_sig, *args, **kwargs)

    return Agent(worker_spec, NoLogs())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
