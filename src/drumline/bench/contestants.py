"""Who takes part in a comparison: scripts of a folder, how each is started, and what came of one run of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from signal import SIGTERM
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

import drumline
from drumline.errors import ConfigError
from drumline.launcher.processes import die_with_parent, end_marked
from drumline.launcher.spec import MARK

LIST = "contestants.json"
"""The file of a folder that lists its contestants."""
NEEDED = ("name", "units_per_s", "step_s", "peak_memory_bytes", "losses", "versions")
"""What a contestant's line must hold."""
TAIL_LINES = 60
"""Lines of a failed contestant's log that go into its record."""


class Contestant(BaseModel):
    """One script: `SCRIPT TASK.json NUM_DEVICES [ARGUMENTS]`, whose rank 0 prints one JSON line with NEEDED."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    """Modules that must be importable; where one is not, it is reported as not installed."""
    processes: str = Field(pattern="^(each|one)$")
    """A process a device, under torch's launcher, or one for all."""
    num_devices: PositiveInt | None = None
    """Always so many; none: as many as the comparison is of."""

    def missing(self) -> list[str]:
        """Its packages that are not installed."""
        return [package for package in self.packages if find_spec(package) is None]

    def devices_of(self, num_devices: int) -> int:
        """The devices that it takes of those of the comparison."""
        return min(self.num_devices or num_devices, num_devices)


def read_contestants(folder: Path) -> list[Contestant]:
    """The contestants of a folder, in its order. Raises ConfigError where there is no such folder or list."""
    path = folder / LIST
    if not path.is_file():
        raise ConfigError(
            f"there are no contestants in {folder}: it has no {LIST}",
            "give their folder with --peers-dir: it is benchmarks/peers in drumline's sources, and not part of the "
            "installed package",
        )
    try:
        return [Contestant.model_validate(each) for each in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError, ValidationError) as error:
        raise ConfigError(f"{path} is no list of contestants: {error}", "mend it as the message says") from None


def choose(contestants: Sequence[Contestant], names: Sequence[str]) -> list[Contestant]:
    """Those whose name or script begins with one of the names, in the folder's order; all where none is given."""
    chosen = []
    for each in contestants:
        if not names or any(each.name.startswith(name) or each.script.startswith(name) for name in names):
            chosen.append(each)
    for name in names:
        if not any(each.name.startswith(name) or each.script.startswith(name) for each in chosen):
            there = ", ".join(each.name for each in contestants)
            raise ConfigError(f"no contestant is called {name!r}", f"choose from: {there}")
    return chosen


@dataclass(frozen=True)
class Ran:
    """One run of one contestant; `line` is what it printed, empty where it failed.

    What it measured is whole once it is printed. A peer may still crash while it takes its groups down: that is said,
    and the figures count.
    """

    name: str
    round: int
    problem: str
    """Why there is no line; empty where there is one."""
    line: Mapping[str, Any]
    ending: str = ""
    """How it ended after its line, where that was not well."""

    def to_json(self) -> dict[str, Any]:
        """As it is kept in runs.jsonl."""
        return asdict(self)


@dataclass(frozen=True)
class Start:
    """What a run of any contestant is started with."""

    folder: Path
    task: Path
    num_devices: int
    gpus: tuple[str, ...]
    """UUIDs, in order; empty: the task runs on the CPU."""
    limit_s: float


def run_contestant(start: Start, contestant: Contestant, number: int, log: Path) -> Ran:
    """Run it in fresh processes with its output in `log`; whatever is left of them afterwards is killed."""
    devices = contestant.devices_of(start.num_devices)
    mark = uuid.uuid4().hex
    with log.open("wb") as output:
        child = subprocess.Popen(
            command_of(start, contestant),
            cwd=start.folder,
            env=environment(start, devices, mark),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            preexec_fn=partial(die_with_parent, SIGTERM, os.getpid()),
        )
        try:
            status = child.wait(start.limit_s)
            problem = f"exit status {status}" if status else ""
        except subprocess.TimeoutExpired:
            problem = f"not done within {start.limit_s:g} s"
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
            end_marked(mark)
    text = log.read_text(encoding="utf-8", errors="replace")
    line = found_line(text)
    tail = "\n".join(text.splitlines()[-TAIL_LINES:])
    if line is None:
        return Ran(contestant.name, number, f"{problem or 'it printed no result'}\n{tail}", {})
    return Ran(contestant.name, number, "", line, f"{problem} after its result\n{tail}" if problem else "")


def command_of(start: Start, contestant: Contestant) -> list[str]:
    """The command of one run; torch's launcher goes before it where it has a process a device."""
    devices = contestant.devices_of(start.num_devices)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={devices}"]
    script = [contestant.script, str(start.task.resolve()), str(devices), *contestant.arguments]
    return [sys.executable, *(launcher if contestant.processes == "each" and devices > 1 else ()), *script]


def environment(start: Start, devices: int, mark: str) -> dict[str, str]:
    """The caller's, with this drumline importable, these GPUs alone visible, and as many threads for everybody."""
    source = str(Path(drumline.__file__).parents[1])
    found = {**os.environ, MARK: mark, "PYTHONUNBUFFERED": "1"}
    found["PYTHONPATH"] = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    if start.gpus:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(start.gpus[:devices])
    # Torch's launcher would say 1 to several processes, and nothing to one, which then takes every core.
    found.setdefault("OMP_NUM_THREADS", "4" if start.gpus else "1")
    return found


def found_line(text: str) -> dict[str, Any] | None:
    """The last line that is a whole result; None where there is none."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                result = json.loads(line)
            except ValueError:
                continue
            if isinstance(result, dict) and all(key in result for key in NEEDED):
                return result
    return None
