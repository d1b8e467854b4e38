"""What the runs of this machine are doing, from what their directories hold; nobody asks the processes."""

from __future__ import annotations

import re
import shutil
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal

import psutil

from drumline.launcher.recording import GPU_SICK, MODULE
from drumline.monitor.follow import Follower
from drumline.monitor.loss_trend import LossTrend
from drumline.monitor.spending import total_spending
from drumline.rundir import RunDir, read_json

OURS = frozenset({"alert", "xid", GPU_SICK})
"""Events that are written by who watches the run, and are no sign of its life."""
ENDED_WITHIN_S = 3600.0
"""How long a run that has ended is still listed."""
LINES = 20
"""Log lines from which the pace is told."""
_HOLDER = re.compile(r"process (\d+) on (.+)")

RunState = Literal["starting", "running", "done", "interrupted", "failed", "killed", "elsewhere"]


@dataclass(frozen=True)
class RunFacts:
    """One run at one moment; None where its directory does not say."""

    path: Path
    name: str
    state: RunState
    """elsewhere: another machine has it; killed: its process has ended without a word."""
    step: int | None = None
    """Updates up to the last log line."""
    total_steps: int | None = None
    epoch: int | None = None
    step_age_s: float | None = None
    """Since its last log line, or, before the first one, its last sign of life; None once it has ended."""
    overdue_s: float | None = None
    """The same, less the usual time between two lines; None before the first, when nobody knows it."""
    loss: float | None = None
    """Of the last log line; may be NaN or infinite."""
    eval_loss: float | None = None
    loss_rise: float | None = None
    """See LossTrend.rise."""
    units_per_s: float | None = None
    unit: str = "samples"
    mfu: float | None = None
    elapsed_s: float | None = None
    eta_s: float | None = None
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that it has on the machine that wrote plan.json."""
    world_size: int | None = None
    energy_j: float = 0.0
    gpu_s: float = 0.0
    cost: float = 0.0
    message: str = ""
    """Why it ended."""
    alerts: tuple[str, ...] = ()
    """Names of the rules that fire."""
    here: bool = True
    """Whether this machine has it, or had it last; in a folder that machines share, its own one alone tells of it."""


class RunWatch:
    """Follows one run directory: each look reads only what was added."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """clock: seconds since 1970, as the records are stamped."""
        self._run = RunDir(path)
        self._clock = clock
        self._metrics = Follower(self._run.metrics)
        self._events = Follower(self._run.events)
        self._firing: dict[tuple[str, str], None] = {}
        self._sign: float | None = None
        self._forget()

    def _forget(self) -> None:
        self._trend = LossTrend()
        self._lines: deque[tuple[float, float]] = deque(maxlen=LINES)
        self._last: dict[str, Any] = {}
        self._eval: dict[str, Any] = {}

    def look(self) -> RunFacts:
        """What the run is now."""
        self._read_metrics()
        self._read_events()
        plan, end = _document(self._run.plan), _document(self._run.exit)
        state = state_of(self._run, end)
        pace, usual_s = self._pace()
        step, total = _whole(self._last.get("step")), _whole(plan.get("steps"))
        age = self._sign_age() if state in ("running", "starting") else None
        left = total - step if total is not None and step is not None and state == "running" else None
        spent = total_spending(self._run)
        return RunFacts(
            path=self._run.path,
            name=self._run.path.resolve().name,
            state=state,
            step=step,
            total_steps=total,
            epoch=_whole(self._last.get("epoch")),
            step_age_s=age,
            overdue_s=None if age is None or state != "running" or usual_s is None else max(0.0, age - usual_s),
            loss=self._trend.last,
            eval_loss=_number(self._eval.get("loss")),
            loss_rise=self._trend.rise,
            units_per_s=_number(self._last.get("units_per_s")),
            unit=str(self._last.get("unit", "samples")),
            mfu=_number(self._last.get("mfu")),
            elapsed_s=_number(self._last.get("elapsed_s")),
            eta_s=None if left is None or pace is None else max(0, left) * pace,
            gpus=tuple(plan.get("gpus") or ()),
            world_size=_whole(plan.get("world_size")),
            energy_j=spent.energy_j,
            gpu_s=spent.gpu_s,
            cost=spent.cost,
            message=str(end.get("message") or ""),
            alerts=tuple(dict.fromkeys(rule for rule, _ in self._firing)),
            here=_is_here(self._run),
        )

    def _read_metrics(self) -> None:
        records = self._metrics.read()
        if self._metrics.rewritten:
            self._forget()
        for record in records:
            if record.get("kind") == "gpu":
                continue
            self._sign = max(self._sign or 0.0, _number(record.get("time")) or 0.0)
            if record.get("kind") == "eval":
                self._eval = record
                continue
            self._last = record
            if (loss := _number(record.get("loss"))) is not None:
                self._trend.add(loss)
            if (elapsed := _number(record.get("elapsed_s"))) is not None:
                self._lines.append((elapsed, _number(record.get("step")) or 0.0))

    def _read_events(self) -> None:
        for record in self._events.read():
            name = record.get("event")
            if name not in OURS:
                self._sign = max(self._sign or 0.0, _number(record.get("time")) or 0.0)
            if name == "start":  # a new attempt, whose watcher knows nothing of what fired before
                self._firing.clear()
            elif name == "alert":
                key = (str(record.get("rule")), str(record.get("subject")))
                if record.get("state") == "firing":
                    self._firing[key] = None
                else:
                    self._firing.pop(key, None)

    def _sign_age(self) -> float | None:
        return None if self._sign is None else max(0.0, self._clock() - self._sign)

    def _pace(self) -> tuple[float | None, float | None]:
        """Seconds an update, and between two log lines; medians of the newest, so that a pause does not count.

        Before the second line its time since the start stands for the latter; before the first nobody knows it.
        """
        pairs = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(self._lines) if b[0] > a[0]]
        updates = [seconds / steps for seconds, steps in pairs if steps > 0]
        first = self._lines[0][0] if self._lines else None
        return median(updates) if updates else None, median([s for s, _ in pairs]) if pairs else first


def state_of(run: RunDir, end: Mapping[str, Any]) -> RunState:
    """What a run directory says of its run: exit.json first, then whether the holders of its locks live."""
    if end:
        named: dict[Any, RunState] = {0: "done", 3: "interrupted"}
        return named.get(end.get("exit_status"), "failed")
    run_holder, launcher = (holder_of(run.logs / f"{role}.lock") for role in ("run", "launch"))
    if run_holder == "alive":
        return "running"
    if launcher == "alive" or run_holder == launcher == "nobody":
        return "starting"
    return "elsewhere" if "elsewhere" in (run_holder, launcher) else "killed"


def _is_here(run: RunDir) -> bool:
    """Whether this machine has it, or took it last: locks keep their holder's name, and the launcher's comes first."""
    run_holder, launcher = (holder_of(run.logs / f"{role}.lock") for role in ("run", "launch"))
    last = launcher if run_holder == "nobody" or launcher == "alive" else run_holder
    return last != "elsewhere"


def holder_of(lock: Path) -> Literal["alive", "gone", "elsewhere", "nobody"]:
    """Whether the process that last took a lock lives; the lock itself is left alone, as who tries it holds it."""
    try:
        found = _HOLDER.match(lock.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        found = None
    if found is None:
        return "nobody"
    if found[2].strip() != socket.gethostname():
        return "elsewhere"
    try:
        return "gone" if psutil.Process(int(found[1])).status() == psutil.STATUS_ZOMBIE else "alive"
    except psutil.NoSuchProcess:
        return "gone"
    except psutil.Error:
        return "alive"


class RunsOnThisMachine:
    """The runs in some folders, and those that are recorded on this machine wherever they are; call it for a look."""

    def __init__(self, folders: Iterable[Path] = (), clock: Callable[[], float] = time.time) -> None:
        """folders: of run directories, such as runs/, or run directories themselves."""
        self._folders = tuple(folders)
        self._clock = clock
        self._watches: dict[Path, RunWatch] = {}

    def __call__(self) -> list[RunFacts]:
        """Those that go on, and those that ended within ENDED_WITHIN_S, by path; ones that cannot be read are none."""
        found = sorted(set(self._found()))
        self._watches = {path: self._watches.get(path) or RunWatch(path, self._clock) for path in found}
        return [watch.look() for watch in self._watches.values()]

    def _found(self) -> Iterator[Path]:
        for folder in self._folders:
            try:
                inner = [folder, *folder.iterdir()]
            except OSError:
                continue
            yield from (path.resolve() for path in inner if self._counts(path))
        yield from (path for path in recorded() if self._counts(path))

    def _counts(self, path: Path) -> bool:
        run = RunDir(path)
        try:
            if not (run.metrics.exists() or run.plan.exists()):
                return False
            ended = [file.stat().st_mtime for file in (run.exit, run.events, run.metrics) if file.exists()]
            locks = (run.logs / "run.lock", run.logs / "launch.lock")
            alive = not run.exit.exists() and any(holder_of(lock) == "alive" for lock in locks)
        except OSError:
            return False
        return alive or max(ended, default=0.0) > self._clock() - ENDED_WITHIN_S


def recorded() -> Iterator[Path]:
    """Directories of the runs that are being recorded on this machine, as their recorders' commands name them."""
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if MODULE in command[:-1]:
            yield Path(command[command.index(MODULE) + 1])


def room_of(run: RunDir) -> tuple[int, int]:
    """Free bytes on the disk of a run, and what its newest checkpoint takes, 0 without one. Raises OSError."""
    numbered = ((path, path.name.removeprefix("step_")) for path in run.checkpoints.glob("step_*"))
    newest = max(((int(step), path) for path, step in numbered if step.isdecimal()), default=None)
    taken = 0
    if newest is not None:
        with suppress(FileNotFoundError):  # the run has just removed it
            taken = sum(file.stat().st_size for file in newest[1].iterdir())
    return shutil.disk_usage(run.path).free, taken


def _document(path: Path) -> Mapping[str, Any]:
    try:
        document = read_json(path)
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
