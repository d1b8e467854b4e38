"""Stands in for the commands of a job where a test is about who starts and ends them: the same files, no torch.

It writes down every beginning and end, and complains in `violations` where two of them are in one run directory or on
one device at once. Work.settings say what happens: `steps` and `pace_s`, and `does`: quick, long (until SIGTERM, on
which it is saved), deaf (to SIGTERM), bad (a bad request), failing, orphan (leaves a process behind).
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from drumline.jobs.keeper_files import Command, exported_of, run_of
from drumline.jobs.records import Job
from drumline.rundir import LineWriter, Lock, RunDir, write_json

PROGRAM = Path(__file__)


def simulated_commands(job: Job, folder: Path) -> list[Command]:
    """As commands.commands_of, of this program."""
    settings = json.dumps({**job.work.settings, "devices": job.devices, "attempt": job.attempt})
    words = (sys.executable, "-P", str(PROGRAM))
    commands = [Command("train", (*words, "train", str(folder), settings))]
    if job.work.export:
        out = exported_of(folder)
        commands.append(Command("export", (*words, "export", str(folder), settings), str(out)))
    return commands


def main(command: str, folder: Path, settings: dict[str, Any]) -> int:
    """Do as the command does."""
    if command == "export":
        exported_of(folder).mkdir()
        print("exported", flush=True)
        return 0
    if settings.get("does") == "bad":
        print("error: there is no such model\n  fix: name another", flush=True)
        return 2
    asked: list[int] = []
    deaf = settings.get("does") == "deaf"
    signal.signal(signal.SIGTERM, signal.SIG_IGN if deaf else lambda number, frame: asked.append(number))
    run = run_of(folder)
    run.logs.mkdir(parents=True, exist_ok=True)
    held = [_alone(folder.parent.parent / "held" / name, folder) for name in settings["devices"]]
    held.append(_alone(run.logs / "alone", folder))
    _ = Lock(run, "launch")
    run.exit.unlink(missing_ok=True)
    ledger = LineWriter(folder / "ledger.jsonl")
    ledger.write({"begun": settings["attempt"], "pid": os.getpid()})
    status = _train(run, settings, asked)
    ledger.write({"ended": settings["attempt"], "status": status})
    message = {3: "interrupted by SIGTERM", 1: "it is NaN\n  fix: lower the rate"}.get(status, "")
    write_json(run.exit, {"exit_status": status, "reason": "", "message": message, "steps": settings.get("steps", 2)})
    if message:
        print(f"error: {message}", flush=True)
    return status


def _train(run: RunDir, settings: dict[str, Any], asked: list[int]) -> int:
    steps, does = int(settings.get("steps", 2)), settings.get("does", "quick")
    write_json(run.plan, {"gpus": [], "world_size": len(settings["devices"]), "steps": steps})
    run.config.touch()
    if does in ("orphan", "deaf"):
        subprocess.Popen(["sleep", "60"], start_new_session=True)
    done = sum(1 for _ in run.metrics.open()) if run.metrics.exists() else 0
    metrics = LineWriter(run.metrics)
    for step in range(done + 1, steps + 1):
        if asked:
            return 3
        metrics.write({"kind": "train", "step": step, "loss": 1 / step, "elapsed_s": 0.01 * step, "mfu": 0.4})
        print(f"step {step}", flush=True)
        time.sleep(float(settings.get("pace_s", 0.01)))
    while does in ("long", "deaf", "orphan"):
        if asked:
            return 3
        time.sleep(0.02)
    return 1 if does == "failing" else 0


def _alone(path: Path, folder: Path) -> IO[bytes]:
    """Hold a lock that nobody else may hold now; a second holder is written down for the test to find."""
    path.parent.mkdir(exist_ok=True)
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        with (folder.parent.parent / "violations").open("a") as violations:
            violations.write(f"{folder.name}: somebody else has {path}\n")
    return file


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])))
