"""Starts workers that know nothing of each other, replaces those that die, and waits until all have ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from drumline.errors import HangError
from drumline.hardware.host import cpu_cores
from drumline.launcher.failures import FIX_MARK, Failure, failure_of_exit, first_failure
from drumline.launcher.independent_child import DISK_FULL, Start
from drumline.launcher.notices import Notice, handled
from drumline.launcher.processes import end_marked
from drumline.launcher.replacing import STOPPED, Decision, End, Seat, decide, outcome
from drumline.launcher.silence import Silence
from drumline.launcher.spec import MARK
from drumline.rundir import LineWriter, RunDir

LOOK_S = 0.05
DONE_GRACE_S = 2.0
"""How long others may take to see that all is done, before they are asked to stop."""
ASKED_GRACE_S = 3.0
"""And how long after that; they hold nothing any more that anybody waits for."""


@dataclass(frozen=True)
class Crew:
    """The workers of one machine, and what they run."""

    run_dir: Path
    """An existing run directory: logs/ and events.jsonl are written."""
    module: str
    args: tuple[str, ...]
    """sys.argv[1:] of the module."""
    gpus: tuple[tuple[str, ...], ...]
    """One worker each: the UUIDs of its GPUs; () hides them all."""
    max_restarts: int = 20
    """Of workers whose end brought nothing new (Watch.progress)."""
    stop_grace_s: float = 120.0
    """How long workers may take to end after a signal to the launcher."""
    silence_s: float = 60.0
    """How long a worker may write nothing to its record before it is killed and another takes its place."""
    hang_timeout_s: float = 1800.0
    """How long it may be at one batch."""
    stop_signals: tuple[str, ...] = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")
    """Signals to the launcher on which its workers get a SIGTERM, once."""
    machine: str = ""
    """In the names of what it writes, where another machine's crew writes there, too."""

    @property
    def run(self) -> RunDir:
        """The run directory's names."""
        return RunDir(self.run_dir)

    def log_of(self, number: int) -> Path:
        """What the workers on one seat wrote to their standard streams."""
        return self.run.logs / f"{self._name_of(number)}.log"

    def error_of(self, number: int) -> Path:
        """The failure of the newest worker there, in JSON; absent if it did not fail or left no record."""
        return self.run.logs / f"{self._name_of(number)}.error.json"

    @property
    def events(self) -> Path:
        """What became of the workers of this machine."""
        return self.run.logs / f"events_{self.machine}.jsonl" if self.machine else self.run.events

    def _name_of(self, number: int) -> str:
        return f"worker_{self.machine}_{number}" if self.machine else f"worker_{number}"


@dataclass(frozen=True)
class Result:
    """How it ended."""

    exit_status: int
    """0 if a worker said that all is done; 2 for a bad request; 3 if it was stopped before; else 1."""
    failure: Failure | None = None
    """What it failed of: `rank` is the worker's place on the machine."""
    interrupted: signal.Signals | None = None
    """The signal that this process got meanwhile and passed on."""
    restarts: int = 0
    leftovers: tuple[int, ...] = ()
    """Pids of processes that had outlived their workers and were ended."""


@dataclass(frozen=True)
class Watch:
    """What else is done meanwhile."""

    begun: Callable[[int], bool] = lambda pid: True
    """Whether the worker with this pid has got as far as its work."""
    records: Callable[[int], Sequence[Path]] = lambda pid: ()
    """The files that the worker with this pid writes every few seconds; none while nothing is expected of it."""
    progress: Callable[[], object] = lambda: None
    """What the run has come to: equal to what it was if nothing has been done or learnt since."""
    tick: Callable[[], None] = lambda: None
    """Called many times a second; must return at once."""
    tell: Callable[[str], None] = lambda text: None
    """Gets a line for people on each worker that died."""


def run_crew(crew: Crew, watch: Watch | None = None) -> Result:
    """Start the workers, one a seat, and wait until all have ended; nothing of them is left running then.

    Call it in the main thread, where stop signals are passed on, each once; a second SIGINT or SIGTERM, or a worker
    that does not end within stop_grace_s, makes it SIGKILL for all. Nothing is printed here.
    """
    mark = uuid.uuid4().hex
    with _pipe() as pipe:
        running = _Running(crew, watch or Watch(), mark, pipe)
        try:
            with handled(crew.stop_signals, running.handle):
                running.until_all_ended()
        finally:
            running.kill()
            left = tuple(end_marked(mark))
    return running.result(left)


@dataclass
class _Worker:
    number: int
    process: subprocess.Popen[bytes]
    strangers: frozenset[Path]
    """Records of another process that had its pid."""
    stuck: str | None = None
    """Why it was killed."""


@dataclass
class _Running:
    """Workers that run, and what has become of the others."""

    crew: Crew
    watch: Watch
    mark: str
    pipe: int
    workers: dict[int, _Worker] = field(default_factory=dict)
    """By their number, which is that of their seat."""
    ends: list[End] = field(default_factory=list)
    restarts: int = 0
    vain_restarts: int = 0
    notice: Notice = field(default_factory=Notice)
    killing: bool = False
    passed_on: bool = False
    done_at: float | None = None

    def until_all_ended(self) -> None:
        self.seats = [Seat(gpus) for gpus in self.crew.gpus]
        self.silence = Silence(self.crew.silence_s, self.crew.hang_timeout_s)
        self.progress = self.watch.progress()
        for number in range(len(self.seats)):
            self.start(number)
        while self.workers:
            for worker in list(self.workers.values()):
                if worker.process.poll() is not None:
                    self.ended(worker)
            self.end_those_who_should()
            self.end_those_who_are_stuck()
            self.watch.tick()
            time.sleep(LOOK_S)

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.killing |= self.notice.take(number) == "again"

    @property
    def stopping(self) -> bool:
        return self.notice.first is not None or self.done_at is not None or self.killing

    @property
    def has_begun(self) -> bool:
        """Whether any worker has got going, those that have ended counted."""
        alive = (worker.process.pid for worker in self.workers.values())
        return any(end.got_going for end in self.ends) or any(map(self.watch.begun, alive))

    def start(self, number: int) -> None:
        if self.stopping:
            return
        self.crew.error_of(number).unlink(missing_ok=True)
        start = Start(os.getpid(), self.pipe, number, str(self.crew.error_of(number)), not self.has_begun)
        command = [sys.executable, "-P", "-m", "drumline.launcher.independent_child", start.to_text()]
        log = os.open(self.crew.log_of(number), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            process = subprocess.Popen(
                [*command, self.crew.module, *self.crew.args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self.crew, number, self.mark),
                pass_fds=(self.pipe,),
                process_group=0,  # Ctrl-C in the terminal reaches the launcher alone, which passes it on once
            )
        finally:
            os.close(log)
        self.workers[number] = _Worker(number, process, frozenset(self.watch.records(process.pid)))

    def ended(self, worker: _Worker) -> None:
        number = worker.number
        del self.workers[number]
        end = self.end_of(worker)
        failure = end.failure
        before, self.progress = self.progress, self.watch.progress()
        in_vain = before == self.progress
        left = self.crew.max_restarts - self.vain_restarts if in_vain else 1
        decision = decide(self.seats[number], end, left, stopping=self.stopping, others_work=self.has_begun)
        self.ends.append(end)
        self.seats[number] = decision.seat
        if failure is not None and not self.stopping:
            self.report(number, failure, decision)
        if decision.action == "replace":
            self.restarts += 1
            self.vain_restarts += in_vain
            self.start(number)
        elif decision.action == "done" and self.done_at is None:
            self.done_at = time.monotonic()
        elif decision.action == "refused":
            self.killing = True

    def end_of(self, worker: _Worker) -> End:
        """How a worker has ended, and what it failed of."""
        number, code, failure = worker.number, worker.process.returncode, None
        if code not in (0, STOPPED) and not (self.stopping and code == -signal.SIGTERM):
            recorded = first_failure([self.crew.error_of(number)])
            failure = recorded or failure_of_exit(number, code, time.time())
            if worker.stuck is not None and code == -signal.SIGKILL:
                failure = Failure(number, time.time(), HangError.code, 1, f"ended by its launcher: {worker.stuck}")
            if recorded is not None and code == -signal.SIGALRM:  # it did not come to its own exit in time
                code = recorded.exit_status
            if code == DISK_FULL:
                text = "the disk is full" if recorded is None else recorded.message
                failure = replace(failure, message=f"{text}{FIX_MARK}make room; the same command goes on then")
        return End(code, self.watch.begun(worker.process.pid), failure)

    def report(self, number: int, failure: Failure, decision: Decision) -> None:
        """Say it to people, and in events.jsonl."""
        gpus = self.seats[number].gpus
        where = f" on {', '.join(gpus)}" if gpus else ""
        problem = failure.message.partition("\n")[0]
        then = {"replace": "another one takes its place", "leave_out": f"no other follows there: {decision.why}"}
        self.watch.tell(f"worker {number}{where} died: {problem}; {then.get(decision.action, 'all end')}")
        self.note("worker_died", number, {"message": failure.message, "action": decision.action, "why": decision.why})

    def note(self, event: str, number: int, facts: Mapping[str, str]) -> None:
        """Append an event on a worker to events.jsonl; where that cannot be, people are told."""
        try:
            events = LineWriter(self.crew.events)
            try:
                events.write({"event": event, "worker": number, "gpus": list(self.seats[number].gpus), **facts})
            finally:
                events.close()
        except OSError as error:  # a disk that is full: the workers themselves end well or badly by it
            self.watch.tell(f"this could not be written to {self.crew.events}: {error}")

    def end_those_who_are_stuck(self) -> None:
        """Kill those whose records say so; what follows is what follows any death."""
        if self.stopping or not self.silence.is_due:
            return
        alive = {number: worker for number, worker in self.workers.items() if worker.stuck is None}
        files = {
            number: [file for file in self.watch.records(worker.process.pid) if file not in worker.strangers]
            for number, worker in alive.items()
        }
        for number, reason in self.silence.look(files).items():
            worker = alive[number]
            worker.stuck = reason
            gpus = self.seats[number].gpus
            where = f" on {', '.join(gpus)}" if gpus else ""
            self.watch.tell(f"warning: worker {number}{where} is stuck and is killed: {reason}")
            self.note("worker_stuck", number, {"message": reason})
            with suppress(ProcessLookupError):  # it has ended by itself just now
                os.killpg(worker.process.pid, signal.SIGKILL)

    def end_those_who_should(self) -> None:
        now = time.monotonic()
        if self.notice.first is not None and time.time() > self.notice.time + self.crew.stop_grace_s:
            self.killing = True
        if self.done_at is not None and now > self.done_at + DONE_GRACE_S + ASKED_GRACE_S:
            self.killing = True
        asked = self.notice.first is not None or (self.done_at is not None and now > self.done_at + DONE_GRACE_S)
        if asked and not self.passed_on:
            self.passed_on = True
            for worker in self.workers.values():
                worker.process.send_signal(signal.SIGTERM)
        if self.killing:
            self.kill()

    def kill(self) -> None:
        """Kill what runs, each with all of its process group."""
        for worker in self.workers.values():
            with suppress(ProcessLookupError):  # it has ended by itself just now
                os.killpg(worker.process.pid, signal.SIGKILL)
            worker.process.wait()

    def result(self, left: tuple[int, ...]) -> Result:
        status, failure = outcome(self.ends, asked=self.notice.first)
        return Result(status, failure, self.notice.first, self.restarts, left)


def environment(crew: Crew, number: int, mark: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Pure: what one worker finds in its environment."""
    found = {**environ, MARK: mark, "CUDA_VISIBLE_DEVICES": ",".join(crew.gpus[number])}
    # Each would take a thread a core for its products, and N workers would fight for them.
    found.setdefault("OMP_NUM_THREADS", str(max(1, cpu_cores() // len(crew.gpus))))
    return found


@contextmanager
def _pipe() -> Iterator[int]:
    """The end that the workers hold of a pipe whose other end this process alone has, while it lives."""
    theirs, own = os.pipe()
    try:
        yield theirs
    finally:
        os.close(own)
        os.close(theirs)
