"""Kills `drumline infer`, its launcher or its workers, again and again, goes on with it, and compares the bytes.

    python tests/chaos/infer_kills.py --kills 30 --seed 0

The same seed gives the same kinds of kills and moments; how the processes are scheduled meanwhile is chance. A run that
ends before all kills have come is compared and begun again. Prints a line a kill and the verdict, ends 0 where every
promise was kept; the folder is kept where one was not.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import psutil

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from drumline.rundir import read_json  # noqa: E402
from tests.cli.prediction import arguments, batches_done, make_model, rows_of, write_rows  # noqa: E402

COMMAND = Path(sys.executable).with_name("drumline")
FOLDER = "INFER_KILLS_FOLDER"
"""Variable by which all processes of a run are found, whoever their parent is."""
LEFT_LIMIT_S = 10.0
"""Within which nothing may be left after the launcher has ended, however it ended."""
END_LIMIT_S = 180.0
"""Within which a command must come to a kill's moment or to its end; far more than it takes, on a busy machine too."""
BAD = 5
"""Rows with an error."""
LOOK_S = 0.005


class Broken(Exception):
    """A promise that was not kept."""


class Kill(NamedTuple):
    """One disturbance."""

    what: str
    """worker or launcher (SIGKILL), or stop (SIGTERM to the launcher, after which it ends in good order)."""
    moment: str
    """start: so many seconds after the command began; batches: when so many more are done; end: when all are."""
    amount: float


def draw(chance: random.Random) -> Kill:
    """Any disturbance, at any moment, most of them while rows are answered."""
    what = chance.choice(["worker", "worker", "launcher", "launcher", "stop"])
    moment = chance.choice(["start", *["batches"] * 5, "end"])
    amount = {"start": chance.uniform(0, 4), "batches": chance.randint(1, 12), "end": 0}[moment]
    return Kill(what, moment, amount)


class InferKills:
    """A prediction run that is disturbed, beside one that was not."""

    def __init__(self, folder: Path, num_rows: int, seed: int) -> None:
        self._folder = folder
        self._kills = random.Random(seed)
        self._chance = random.Random(seed + 1)
        """For how many workers, and which of them."""
        self._model = make_model(folder)
        self._data = write_rows(folder / "in.jsonl", num_rows)
        self._num_rows = num_rows
        self._out = folder / "out.jsonl"
        self._command: subprocess.Popen[bytes] | None = None
        self._began = 0.0

    def run(self, num_kills: int) -> str:
        """Disturb it so often, and bring it to its end; returns what was done. Raises Broken."""
        wanted = self._undisturbed()
        done: Counter[str] = Counter()
        rounds = 0
        for number, kill in enumerate((draw(self._kills) for _ in range(num_kills)), 1):
            while not self._strike(kill):  # it came to its end before
                rounds += 1
                self._compare(wanted)
            done[f"{kill.what} at {kill.moment}"] += 1
            print(f"{number}: {kill}, {batches_done(self._out)} batches done", flush=True)
        if self._command is not None or not self._out.exists():
            self._to_its_end()
            self._compare(wanted)
            rounds += 1
        return f"{num_kills} kills over {rounds} runs, each with the bytes of the undisturbed one: {dict(done)}"

    def close(self) -> None:
        """Leave no process behind."""
        for process in self._processes():
            process.kill()
        if self._command is not None:
            self._command.kill()
            self._command.wait()

    def _undisturbed(self) -> bytes:
        self._start(1)
        self._to_its_end()
        wanted = self._out.read_bytes()
        failed = sum(row["error"] is not None for row in rows_of(self._out))
        if (len(rows_of(self._out)), failed) != (self._num_rows, BAD):
            raise Broken(f"the undisturbed run has {len(rows_of(self._out))} rows, {failed} failed")
        self._forget()
        return wanted

    def _strike(self, kill: Kill) -> bool:
        """Disturb the run at that moment; False where it came to its end before."""
        if self._command is None:
            self._start(self._chance.randint(1, 3))
        command = self._command
        assert command is not None
        if not self._wait_for(kill):
            self._to_its_end()
            return False
        if kill.what == "worker":
            while command.poll() is None:
                if workers := self._workers():
                    self._chance.choice(workers).kill()
                    return True
                time.sleep(LOOK_S)  # none has begun yet, or all have ended just now
            self._to_its_end()
            return False
        command.send_signal(signal.SIGTERM if kill.what == "stop" else signal.SIGKILL)
        status = command.wait(END_LIMIT_S)
        self._command = None
        if kill.what == "stop" and status not in (0, 3, -signal.SIGTERM):
            raise Broken(f"stopped with status {status}: {self._log()}")
        self._nothing_left()
        return True

    def _wait_for(self, kill: Kill) -> bool:
        """Wait for a kill's moment; False where the command has ended."""
        assert self._command is not None
        limit, before = time.monotonic() + END_LIMIT_S, batches_done(self._out)
        temporary = self._out.with_name(f".{self._out.name}.tmp")
        while self._command.poll() is None:
            if kill.moment == "start" and time.monotonic() >= self._began + kill.amount:
                return True
            if kill.moment == "batches" and batches_done(self._out) >= before + kill.amount:
                return True
            if kill.moment == "end" and (temporary.exists() or self._out.exists()):
                return True
            if time.monotonic() > limit:
                raise Broken(f"{kill} never came: {self._log()}")
            time.sleep(LOOK_S)
        return False

    def _start(self, workers: int) -> None:
        command = [str(COMMAND), *arguments(self._model, self._data, self._out.name, workers, max_restarts=1000)]
        environ = {**os.environ, FOLDER: str(self._folder)}
        with (self._folder / "log.txt").open("ab") as log:
            self._command = subprocess.Popen(command, cwd=self._folder, env=environ, stdout=log, stderr=log)
        self._began = time.monotonic()

    def _to_its_end(self) -> None:
        if self._command is None:
            self._start(self._chance.randint(1, 3))
        assert self._command is not None
        status = self._command.wait(END_LIMIT_S)
        self._command = None
        if status != 0:
            raise Broken(f"it ended with status {status}: {self._log()}")
        self._nothing_left()

    def _compare(self, wanted: bytes) -> None:
        found = self._out.read_bytes()
        if found != wanted:
            pairs = zip(wanted.splitlines(), found.splitlines(), strict=False)
            other = [number for number, (ours, theirs) in enumerate(pairs) if ours != theirs]
            raise Broken(f"{len(found.splitlines())} rows, of which {len(other)} differ: {other[:10]}")
        summary = read_json(self._folder / "out.jsonl.run" / "summary.json")
        if (summary["num_rows"], summary["num_failed"]) != (self._num_rows, BAD):
            raise Broken(f"the summary says {summary}")
        self._forget()

    def _forget(self) -> None:
        self._out.unlink()
        shutil.rmtree(self._folder / "out.jsonl.run")

    def _nothing_left(self) -> None:
        limit = time.monotonic() + LEFT_LIMIT_S
        while found := self._processes():
            if time.monotonic() > limit:
                raise Broken(f"left: {[process.cmdline() for process in found]}")
            time.sleep(0.02)

    def _workers(self) -> list[psutil.Process]:
        return [process for process in self._processes() if "drumline.launcher.independent_child" in process.cmdline()]

    def _processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get(FOLDER) == str(self._folder)
                if ours and process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
                    found.append(process)
            except (psutil.Error, OSError):  # gone meanwhile
                continue
        return found

    def _log(self) -> str:
        return (self._folder / "log.txt").read_text(errors="replace")[-3000:]


def main(given: list[str]) -> int:
    """Run the program; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--rows", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(given)
    folder = Path(tempfile.mkdtemp(prefix="infer-kills-"))
    kills = InferKills(folder, chosen.rows, chosen.seed)
    try:
        print(kills.run(chosen.kills))
    except Broken as broken:
        print(f"BROKEN: {broken}\nsee {folder}")
        return 1
    finally:
        kills.close()
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
