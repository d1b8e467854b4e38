"""Workers of a toy prediction that die: `python -m tests.chaos.prediction_workers FOLDER SEED SCENARIO...`.

They are forked from a process that has torch loaded already and holds nothing of the ledger. The runs are begun, as
FOLDER/SCENARIO.jsonl; prints one line of JSON, by scenario.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from drumline.infer.work import WorkSettings, work
from drumline.predictions import PredictionDir, ProgressReader
from tests.unit.infer.toy import CPU, Hook, Toy, config_for

DEADLY = 57
"""The row at which workers die."""
MOST = 60
"""Workers that are started at most."""


def main(folder: Path, seed: int, scenarios: Sequence[str]) -> None:
    known = {"kill": kill, "crash": crash, "half": half, "random": at_random}
    print(json.dumps({name: known[name](folder / f"{name}.jsonl", seed) for name in scenarios}))


def start(out: Path, hook: Hook) -> int:
    """The process id of one more worker."""
    pid = os.fork()
    if pid:
        return pid
    try:
        config = config_for(out)
        work(PredictionDir(config.directory), Toy(hook=hook), WorkSettings(config, CPU))
        os._exit(0)
    finally:
        os._exit(1)


def deadly(die: Callable[[], object]) -> Hook:
    def hook(rows: Sequence[int], num: int, width: int) -> None:
        if DEADLY in rows:
            die()

    return hook


def slow(rows: Sequence[int], num: int, width: int) -> None:
    time.sleep(0.005)


def kill(out: Path, seed: int) -> dict[str, int]:
    """A row at which the kernel kills the process, as for want of memory."""
    return until_done(out, deadly(lambda: os.kill(os.getpid(), signal.SIGKILL)))


def crash(out: Path, seed: int) -> dict[str, int]:
    """A row at which a library ends the process."""
    return until_done(out, deadly(lambda: os._exit(134)))


def until_done(out: Path, hook: Hook) -> dict[str, int]:
    """Two workers; one that died is replaced."""
    running, deaths, started = {start(out, hook), start(out, hook)}, 0, 2
    while running:
        pid, status = os.wait()
        running.discard(pid)
        if status != 0:
            deaths += 1
            if started < MOST:
                running.add(start(out, hook))
                started += 1
    return {"deaths": deaths}


def half(out: Path, seed: int) -> dict[str, int]:
    """Of three workers one is killed when half of the rows are done, and not replaced."""
    running = [start(out, slow) for _ in range(3)]
    reader = ProgressReader(config_for(out).directory)
    while (progress := reader.look()).rows_done * 2 < (progress.rows_total or 1):
        time.sleep(0.01)
    os.kill(running[0], signal.SIGKILL)
    ends = [os.waitpid(pid, 0)[1] for pid in running]
    return {"killed": ends[0], "others": max(ends[1:]), "done_at_kill": progress.rows_done}


def at_random(out: Path, seed: int) -> dict[str, int]:
    """One to three workers, killed at any moment and started again, their number another each time."""
    chance = random.Random(seed)
    running: set[int] = set()
    kills = 0
    while not out.exists() and kills < MOST:
        while len(running) < chance.randint(1, 3):
            running.add(start(out, slow))
        time.sleep(chance.uniform(0.0, 0.25))
        victim = chance.choice(sorted(running))
        os.kill(victim, signal.SIGKILL)
        kills += os.waitpid(victim, 0)[1] == signal.SIGKILL
        running.discard(victim)
    for pid in running:
        os.waitpid(pid, 0)
    if not out.exists():
        os.waitpid(start(out, slow), 0)
    return {"kills": kills}


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
