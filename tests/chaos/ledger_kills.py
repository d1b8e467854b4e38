"""Kills workers that share a prediction ledger again and again, and looks whether every row is there once, in order.

    python tests/chaos/ledger_kills.py --seeds 0 1 2 --kills 12

Workers are forks of this process, which needs no torch: they freeze the rows, plan, take, answer and write as real ones
do, with a model of one line. Each is killed at some time, or in the middle of some write, rename or sync, and others
in another number go on. The end must have the very bytes of a run that nobody disturbed. The same seed draws the same
kills; how processes are scheduled meanwhile is chance. Prints a line a seed; ends 0 where nothing was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from drumline.config.inference import InferenceConfig
from drumline.infer.final import write_final
from drumline.infer.ledger import Lease, Ledger
from drumline.infer.planning import plan_window
from drumline.infer.records import Answer, Part, Prepared, Row, Window
from drumline.infer.rows import freeze_rows
from drumline.predictions import DONE, PredictionDir

ROWS, WINDOW, TOKENS, MOST_ROWS = 400, 50, 120, 8
PACE_S = 0.002
LIMIT_S = 60.0
COLUMNS = ("answer", "shape")


def main(arguments: list[str]) -> int:
    """Run the program; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--kills", type=int, default=12)
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="ledger-kills-"))
    wanted = undisturbed(folder / "undisturbed.jsonl")
    for seed in given.seeds:
        killed, problem = disturbed(folder / f"{seed}.jsonl", seed, given.kills, wanted)
        if problem:
            print(f"seed {seed}: BROKEN: {problem}; see {folder}")
            return 1
        print(f"seed {seed}: {killed} killed, {ROWS} rows, each once, in order, the same bytes")
    shutil.rmtree(folder)
    return 0


def undisturbed(out: Path) -> bytes:
    """The output of one worker that nobody kills."""
    os.waitpid(start(out, "alone", None), 0)
    if not out.exists():
        raise SystemExit("a run that nobody disturbed failed")
    return out.read_bytes()


def disturbed(out: Path, seed: int, num_kills: int, wanted: bytes) -> tuple[int, str | None]:
    """Workers that were killed, about so many, and what is wrong at the end; None: nothing."""
    chance = random.Random(seed)
    limit = time.monotonic() + LIMIT_S
    killed = started = 0
    while not out.exists():
        victims = []
        for _ in range(chance.randint(1, 3)):
            started += 1
            victims.append(start(out, f"w{started}", draw(chance) if killed < num_kills else None))
        for victim in victims:
            _, status = os.waitpid(victim, 0)
            killed += os.WIFSIGNALED(status)
            if os.WIFEXITED(status) and os.WEXITSTATUS(status):
                return killed, "a worker failed by itself"
        if time.monotonic() > limit:
            return killed, f"not at its end after {LIMIT_S:.0f} s"
    return killed, find_fault(out, wanted)


def find_fault(out: Path, wanted: bytes) -> str | None:
    """Compare the end with an undisturbed run's."""
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    if [row.get("id") for row in rows if row["error"] is None] != [n for n in range(ROWS) if n % 37]:
        return "rows are absent, twice there, or in another order"
    if out.read_bytes() != wanted:
        return "the output differs from that of an undisturbed run"
    directory = PredictionDir(config_for(out).directory)
    if set(directory.state.read_bytes()) != {DONE}:
        return "not all batches count as done"
    if directory.rows.exists() or directory.answers.exists():
        return "rows or answers were left behind"
    return None


def draw(chance: random.Random) -> tuple[str, float]:
    """How a worker dies: after some seconds, or at the n-th call of what makes things durable."""
    if chance.random() < 0.4:
        return "time", chance.uniform(0.0, 0.15)
    return chance.choice(["write", "pwrite", "replace", "fsync", "open"]), chance.choice([1, 2, 3, 5, 8, 13])


def start(out: Path, name: str, fault: tuple[str, float] | None) -> int:
    """Fork a worker; its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        if fault is not None:
            arm(*fault)
        run(out, name)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def arm(what: str, when: float) -> None:
    """See that this process is killed then; a write is cut in its middle first."""
    if what == "time":
        signal.signal(signal.SIGALRM, lambda *_: die())
        signal.setitimer(signal.ITIMER_REAL, max(when, 1e-4))
        return
    real: Callable[..., Any] = getattr(os, what)
    calls = 0

    def counted(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < when:
            return real(*given, **named)
        if what == "write":
            real(given[0], given[1][: len(given[1]) // 2])
        elif calls % 2:
            real(*given, **named)
        die()

    setattr(os, what, counted)


def die() -> None:
    """As the kernel does it: nothing is put in order."""
    os.kill(os.getpid(), signal.SIGKILL)


def run(out: Path, name: str) -> None:
    """What a worker does, from the input to the final file."""
    config = config_for(out)
    directory = PredictionDir(config.directory)
    freeze_rows(directory, rows, lambda: {"sources": []})
    ledger = Ledger(directory.path, f"{name}-{os.getpid()}")
    tokens = ledger.agree(lambda: {"tokens": TOKENS})["tokens"]

    def plan(first_row: int, first_batch: int, number: int) -> Window:
        found = ledger.read(range(first_row, min(first_row + WINDOW, ledger.num_rows)))
        prepared = [row.problem or Prepared(row.number, size(row), size(row) + 1) for row in found]
        return plan_window(number, first_row, first_batch, prepared, tokens, MOST_ROWS)

    returned = False
    while not ledger.is_done:
        if ledger.num_open < 4:
            ledger.plan_next(plan)
        lease = ledger.take()
        if lease is None:
            time.sleep(PACE_S)
        elif lease.batch.number % 11 == 3 and not returned:
            ledger.give_back(lease)
            returned = True
        else:
            ledger.finish(lease, answers(ledger, lease))
    ledger.close()
    write_final(directory, config, COLUMNS)


def answers(ledger: Ledger, lease: Lease) -> list[Answer]:
    """Answers that tell in which shape they were made; some batches are run in two halves."""
    time.sleep(PACE_S)
    batch = lease.batch
    if batch.number % 5 == 0 and len(batch.rows) > 1:
        middle = len(batch.rows) // 2
        if lease.parts is None:
            halves = [Part(batch.rows[:middle]), Part(batch.rows[middle:])]
            lease = ledger.split(lease, halves, "in halves")
        for place in (0, 1):
            lease = ledger.begin(lease, place)
            time.sleep(PACE_S)
    shape = [len(batch.rows), batch.width]
    return [{"answer": str(row.values["text"])[::-1], "shape": shape} for row in ledger.read(batch.rows)]


def rows() -> Iterator[Row]:
    """The input; some rows cannot be read."""
    for number in range(ROWS):
        if number % 37 == 0:
            yield Row(number, {}, f"line {number + 1}: it is not JSON")
        else:
            yield Row(number, {"id": number, "text": f"{number}:" + "x" * (number * 31 % 40)})


def size(row: Row) -> int:
    """Its length in the model's form."""
    return len(row.values["text"])


def config_for(out: Path) -> InferenceConfig:
    """A run whose directory is beside its output."""
    return InferenceConfig.model_validate({"model": {"path": "m"}, "rows": {"files": ["r"]}, "output": {"file": out}})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
