"""Disturbs a run again and again, and compares what it comes to with an undisturbed one, bit for bit.

    python tests/chaos/chaos.py --kind ddp --ranks 2 --kills 50 --seed 0

The same seed gives the same faults at the same updates; how the processes are scheduled meanwhile is chance. Prints a
line a fault and the verdict, ends 0 where every promise was kept; the folder is kept where one was not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from drumline.manifest import check  # noqa: E402
from drumline.rundir import RunDir, read_lines  # noqa: E402
from tests.chaos import victim  # noqa: E402
from tests.chaos.comparison import differences  # noqa: E402
from tests.chaos.schedule import Fault, draw  # noqa: E402

LEFT_LIMIT_S = 10.0
"""Within which nothing of a launch may be left after its launcher has ended, however it ended."""
START_LIMIT_S = 120.0
"""Within which a run that was started must have done an update; far more than it takes, on a busy machine too."""
FULL_UPDATES = 12
"""For how many updates the disk stays full: at least two saves fail."""
LOOK_S = 0.002
AIM_UPDATES = 15
"""So many updates before a fault it is looked up whom it meets."""
FOLDER = "CHAOS_FOLDER"
"""Variable by which all processes of a run are found, whoever their parent is."""


class Broken(Exception):
    """A promise that was not kept."""


def main(arguments: list[str]) -> int:
    """Run the program; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=["single", "ddp", "fsdp"], default="ddp")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", nargs="*", help="faults of these kinds only")
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    ranks = 1 if given.kind == "single" else given.ranks
    faults = draw(given.seed, given.kills, given.steps, ranks, victim.EPOCH)
    faults = [fault for fault in faults if not given.only or fault.what in given.only]
    chaos = Chaos(folder, given.kind, ranks, given.steps)
    try:
        report = chaos.run(faults)
    except Broken as broken:
        print(f"BROKEN: {broken}\nsee {folder}")
        return 1
    print(report)
    shutil.rmtree(folder)
    return 0


class Kill(NamedTuple):
    """Where a run stood when it was disturbed."""

    time: float
    at: int
    """Its newest update."""
    saved: int
    """Its newest checkpoint just before."""
    what: str


@dataclass
class Chaos:
    """One undisturbed and one disturbed run of the same settings, each in a folder of its own."""

    folder: Path
    kind: str
    ranks: int
    steps: int
    say: Callable[[str], None] = print
    began: float = field(default_factory=time.monotonic)
    kills: list[Kill] = field(default_factory=list)

    def run(self, faults: list[Fault]) -> str:
        """Both runs and the comparison; raises Broken."""
        calm = Launch(self.folder / "calm", self.kind, self.ranks, self.steps)
        wild = Launch(self.folder / "wild", self.kind, self.ranks, self.steps)
        for launch in (calm, wild):
            launch.folder.mkdir()
        try:
            calm.start()
            calm.ends_well()
            self.say(f"undisturbed: {self.steps} updates in {self._elapsed()}")
            wild.start()
            for number, fault in enumerate(faults):
                if wild.process.poll() is not None:
                    break
                came_of_it = self._inject(wild, fault)
                self.say(f"{self._elapsed():>8} #{number + 1} {fault}: {came_of_it}")
            wild.ends_well()
            return self._judge(calm, wild, len(faults))
        finally:
            calm.kill()
            wild.kill()

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self.began:.1f} s"

    def _inject(self, launch: Launch, fault: Fault) -> str:
        """Do it; returns what came of it."""
        if not launch.wait_for(fault):
            return "the run had ended"
        if fault.what == "full disk":
            return launch.fill_disk()
        saved = launch.saved()
        met, at = launch.disturb(fault), launch.step()
        told = f"at {at}, saved {saved}"
        if not met and fault.what in ("agent", "all ranks", "rank", "loader", "stop"):
            return f"{told}, met nobody"
        self.kills.append(Kill(time.time(), at, saved, fault.what))
        if fault.what == "preempt":
            launch.process.send_signal(signal.SIGTERM)
            status = launch.end_of(60)
            if status != 3:
                raise Broken(f"{fault}: SIGTERM to the launcher ended it with {status}, not 3\n{launch.tail()}")
        elif fault.what in ("launcher", "damage"):
            launch.process.kill()
            launch.end_of(LEFT_LIMIT_S)
        else:
            launch.since = time.time()
            return told  # the launcher starts it again
        launch.nothing_left()
        if fault.what == "damage":
            told += f", {damage(launch.run, fault)}"
        launch.start()
        return f"{told}, started again"

    def _judge(self, calm: Launch, wild: Launch, num_faults: int) -> str:
        for launch in (calm, wild):
            launch.nothing_left()
            if hidden := [path.name for path in launch.run.checkpoints.iterdir() if not path.name.startswith("step_")]:
                raise Broken(f"left in {launch.run.checkpoints}: {hidden}")
        found = list(differences(wild.run, calm.run, self.steps))
        if found:
            raise Broken("the disturbed run is not the undisturbed one:\n  " + "\n  ".join(found[:20]))
        redone = list(self._redone(wild))
        restarts = sum(1 for path in wild.launch_events() for event in read_lines(path) if event["event"] == "restart")
        return (
            f"KEPT: {self.kind}, {self.ranks} ranks, {self.steps} updates, {num_faults} faults, {wild.starts} starts, "
            f"{restarts} restarts by the launcher, {len(redone)} resumes; updates done again: {max(redone, default=0)} "
            f"at most, {sum(redone)} in all; {self._elapsed()}. Weights, optimizer, average, position and every logged "
            "loss equal the undisturbed run's bit for bit"
        )

    def _redone(self, launch: Launch) -> Iterator[int]:
        """Updates that each resume did again; raises Broken where it could have gone on from a newer checkpoint."""
        for event in read_lines(launch.run.events):
            if event["event"] != "resume":
                continue
            before = [each for each in self.kills if each.time < event["time"]]
            if not before:
                raise Broken(f"started again though nothing had been disturbed: {event}")
            kill = before[-1]
            if event["step"] < kill.saved and kill.what != "damage":
                raise Broken(f"gone on from update {event['step']}, when {kill.saved} was saved: {kill}")
            yield max(0, kill.at - event["step"])


class Launch:
    """`drumline launch victim.py`, as often as it is started."""

    def __init__(self, folder: Path, kind: str, ranks: int, steps: int) -> None:
        self.folder = folder
        self.run = RunDir(folder / "run")
        self.starts, self.since = 0, 0.0
        self._arguments = [str(folder), kind, str(steps)]
        self._ranks = ranks
        self._met: list[psutil.Process] = []
        """Whom the next fault meets."""

    def start(self) -> None:
        """Start the launcher, in a folder where its own logs stay apart from the run's."""
        settings = (f"hardware.num_processes={self._ranks}", "hardware.device=cpu", "faults.max_restarts=1000")
        command = [str(Path(sys.executable).with_name("drumline")), "launch"]
        command += [part for setting in settings for part in ("--set", setting)]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", victim.FSYNC_S: "0.003", FOLDER: str(self.folder)}
        self.starts, self.since = self.starts + 1, time.time()
        with (self.folder / "screen.txt").open("ab") as screen:
            self.process = subprocess.Popen(
                [*command, victim.__file__, *self._arguments],
                cwd=self.folder,
                env=environ,
                stdout=screen,
                stderr=screen,
            )

    def wait_for(self, fault: Fault) -> bool:
        """Wait until the fault is due; False where the run has ended before."""
        self._met = []
        if fault.moment == "start":
            return self._sleep(fault.delay_s)
        saving = f".step_{fault.step // victim.SAVE_EVERY * victim.SAVE_EVERY + victim.SAVE_EVERY}."
        due: dict[str, Callable[[], bool]] = {
            "update": lambda: True,
            "save": lambda: self.step() > fault.step + victim.SAVE_EVERY or self._has(saving),
            "evaluation": lambda: (self.folder / victim.EVALUATING).exists(),
        }
        limit = time.monotonic() + START_LIMIT_S
        while not (self.step() >= fault.step and due[fault.moment]()):
            if not self._sleep(LOOK_S):
                return False
            if not self._met and self.step() >= max(1, fault.step - AIM_UPDATES):
                self._met = chosen(self.processes(), fault)  # takes a while, in which the moment would pass
            if time.monotonic() > limit:
                raise Broken(f"{fault}: not reached within {START_LIMIT_S:g} s, at update {self.step()}\n{self.tail()}")
        return self._sleep(fault.delay_s)

    def disturb(self, fault: Fault) -> int:
        """Send the signal to those whom the fault meets; returns to how many."""
        if not all(process.is_running() for process in self._met) or not self._met:
            self._met = chosen(self.processes(), fault)
        for process in self._met:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP if fault.what == "stop" else signal.SIGKILL)
        return len(self._met)

    def _has(self, beginning: str) -> bool:
        folder = self.run.checkpoints
        return folder.is_dir() and any(path.name.startswith(beginning) for path in folder.iterdir())

    def _sleep(self, seconds: float) -> bool:
        """Sleep; whether the launcher still runs then."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
            if self.process.returncode != 0:
                raise Broken(f"the launcher ended with {self.process.returncode} by itself\n{self.tail()}")
            return False
        return True

    def step(self) -> int:
        """The newest update that the processes of now have logged; 0 before their first."""
        with suppress(OSError), self.run.metrics.open("rb") as file:
            file.seek(max(0, self.run.metrics.stat().st_size - 2000))
            for line in reversed(file.read().split(b"\n")[:-1]):
                with suppress(ValueError):  # torn by a kill, or by where reading began
                    found = json.loads(line)
                    return int(found["step"]) if found["time"] > self.since else 0
        return 0

    def saved(self) -> int:
        """The newest checkpoint that is whole, by what its manifest says of sizes."""
        whole = (path for path in self.run.checkpoints.glob("step_*") if not check(path, contents=False))
        return max((int(path.name[5:]) for path in whole), default=0)

    def processes(self) -> list[psutil.Process]:
        """All that the launcher has started, directly or not, and that runs now."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                mine = process.pid != self.process.pid and process.environ().get(FOLDER) == str(self.folder)
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def fill_disk(self) -> str:
        """Fill it, and empty it again after some updates."""
        full, at = self.folder / victim.FULL, self.step()
        full.touch()
        while self.step() < at + FULL_UPDATES and self._sleep(LOOK_S):
            pass
        full.unlink()
        return f"from {at} to {self.step()}"

    def end_of(self, limit_s: float) -> int:
        """The launcher's exit status."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise Broken(f"the launcher did not end within {limit_s:g} s\n{self.tail()}") from None

    def ends_well(self) -> None:
        """Wait for the end of the run, which must be a good one."""
        status = self.end_of(START_LIMIT_S * 2)
        if status != 0:
            raise Broken(f"the launcher ended with {status}\n{self.tail()}")

    def nothing_left(self) -> None:
        """Raise Broken where a process outlives its launcher."""
        limit = time.monotonic() + LEFT_LIMIT_S
        while left := self.processes():
            if time.monotonic() > limit:
                names = [f"{process.pid} {' '.join(process.cmdline())}" for process in left]
                raise Broken(f"left after {LEFT_LIMIT_S:g} s: {names}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End what a failure has left running."""
        if not self.starts:
            return
        self.process.kill()
        self.process.wait()
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def launch_events(self) -> list[Path]:
        """events.jsonl of each launcher."""
        return sorted((self.folder / "runs/launch").glob("*/events.jsonl"))

    def tail(self) -> str:
        """The end of what the user saw."""
        return "\n".join((self.folder / "screen.txt").read_text(errors="replace").splitlines()[-40:])


def chosen(alive: list[psutil.Process], fault: Fault) -> list[psutil.Process]:
    """Which of a launch's processes a fault meets; none where it is not there yet."""
    agents: list[psutil.Process] = []
    ranks: dict[int, psutil.Process] = {}
    for process in alive:
        with suppress(psutil.Error, OSError):
            if "drumline.launcher.agent" in process.cmdline():
                agents.append(process)
                # Loader processes, which have their rank's command line, are the ranks' children.
                workers = [each for each in process.children() if "drumline.launcher.child" in each.cmdline()]
                ranks |= {int(each.environ()["RANK"]): each for each in workers}
    mine = [ranks[fault.rank]] if fault.rank in ranks else []
    met = {"agent": agents, "all ranks": list(ranks.values()), "rank": mine, "stop": mine}
    if fault.what == "loader" and mine:
        with suppress(psutil.NoSuchProcess):
            return [each for each in mine[0].children() if "drumline.launcher.child" in each.cmdline()][:1]
    return met.get(fault.what, [])


def damage(run: RunDir, fault: Fault) -> str:
    """Spoil the newest checkpoint in one of three ways; returns which."""
    steps = sorted(run.checkpoints.glob("step_*"), key=lambda path: int(path.name[5:]))
    if len(steps) < 2:
        return "nothing to damage"
    newest = steps[-1]
    files = sorted(path for path in newest.iterdir() if path.name != "manifest.json")
    file = files[fault.step % len(files)]
    way = ("truncated", "deleted", "without manifest")[fault.step % 3]
    if way == "truncated":
        os.truncate(file, file.stat().st_size - 1)
    elif way == "deleted":
        file.unlink()
    else:
        (newest / "manifest.json").unlink()
    return f"{newest.name} {way}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
