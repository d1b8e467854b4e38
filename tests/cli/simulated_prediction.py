"""Stands in for `drumline infer` where a test is about the job around it: the same files, no model.

It answers `rows` rows, one a batch and `pace_s` apart, from where a killed or stopped one left off; row 1 has an error.
`does` in a job's settings: quick, long (after three rows until SIGTERM, ended with status 3), failing (at row 2, once).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from drumline.jobs.keeper_files import Command, answers_of, run_of
from drumline.jobs.records import Job
from drumline.predictions import DONE, PredictionDir
from drumline.rundir import LineWriter, write_atomic, write_json

PROGRAM = Path(__file__)


def simulated_infer(job: Job, folder: Path) -> list[Command]:
    """As commands.commands_of, of this program."""
    settings = json.dumps({**job.work.settings, "output": job.work.output, "attempt": job.attempt})
    return [Command("infer", (sys.executable, "-P", str(PROGRAM), str(folder), settings))]


def prepare(place: PredictionDir, rows: int) -> None:
    """A run's directory with all of its rows planned, and none answered."""
    for folder in (place.run.logs, place.windows, place.workers, place.answers):
        folder.mkdir(parents=True, exist_ok=True)
    place.rows.write_text("".join(json.dumps({"values": {"text": f"row {n}"}}) + "\n" for n in range(rows)))
    place.offsets.write_bytes(bytes(8 * (rows + 1)))
    batches = [{"rows": [number], "width": 1} for number in range(rows)]
    window = {"number": 0, "first_row": 0, "num_rows": rows, "first_batch": 0, "batches": batches, "problems": {}}
    write_json(place.window(0), window)
    place.state.write_bytes(bytes(rows))
    write_json(place.rows_facts, {"num_rows": rows, "num_bad": 0, "columns": ["text"], "sources": []})


def answer(place: PredictionDir, number: int) -> None:
    """Say that a row is answered."""
    with place.state.open("r+b") as state:
        state.seek(number)
        state.write(bytes([DONE]))


def main(folder: Path, settings: dict[str, Any]) -> int:
    """Do as the command does."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    place, rows = PredictionDir(run_of(folder).path), int(settings.get("rows", 4))
    if not place.rows_facts.is_file():
        prepare(place, rows)
    place.run.exit.unlink(missing_ok=True)
    worker = LineWriter(place.workers / f"w-{os.getpid()}.jsonl")
    worker.write({"rows": 0, "failed": 0, "tokens": 0, "busy_s": 0.0})
    done = 0
    for number, byte in enumerate(place.state.read_bytes()):
        if byte == DONE:
            continue
        while settings.get("does") == "long" and number >= 3 and not asked:
            time.sleep(0.02)
        if asked:
            return _end(place, 3)
        if settings.get("does") == "failing" and number == 2 and settings["attempt"] == 1:
            print("error: a worker died\n  fix: none", flush=True)
            return _end(place, 1)
        answer(place, number)
        done += 1
        worker.write({"rows": done, "failed": int(number == 1), "tokens": 10 * done, "busy_s": 0.01 * done})
        print(f"row {number}", flush=True)
        time.sleep(float(settings.get("pace_s", 0.01)))
    write_json(place.summary, {"num_rows": rows, "num_failed": 1, "errors": {"too long": 1}, "labels": {"a": rows - 1}})
    lines = [{"text": f"row {number}", "error": "too long" if number == 1 else None} for number in range(rows)]
    write_atomic(answers_of(folder, settings["output"]), "".join(json.dumps(line) + "\n" for line in lines))
    for file in (place.rows, place.offsets):
        file.unlink()
    return _end(place, 0)


def _end(place: PredictionDir, status: int) -> int:
    write_json(place.run.exit, {"exit_status": status, "reason": "", "message": ""})
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
