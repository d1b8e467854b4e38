"""Memory and time from a large JSON Lines file to the first update: data larger than memory must not need it.

Writes a file of random words, about a kilobyte a row, trains one update of a tiny model on it with `drumline train`,
and adds up what all processes of the command hold (PSS: a page that several share counts once). Takes about three times
the file's size on the disk. Prints one JSON line.

    python benchmarks/large_jsonl.py FOLDER --gigabytes 5
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from drumline.rundir import RunDir, read_lines

GIGABYTE = 10**9
ROWS_AT_ONCE = 1000
EVERY_S = 0.1
RECIPE = """
name: large
data: {{kind: records, train: [large.jsonl], context: {context}, cache_dir: cache}}
model: {{num_layers: 1, num_heads: 2, width: 32}}
train: {{global_batch: 16, max_steps: 1}}
hardware: {{device: cpu, num_processes: {processes}}}
"""


def write(path: Path, num_bytes: int) -> int:
    """Write rows until the file has so many bytes; returns their number."""
    generator, num_rows = random.Random(0), 0
    words = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(2, 9))) for _ in range(5000)]
    sentences = [" ".join(generator.choices(words, k=30)) for _ in range(20_000)]
    with path.open("w") as file:
        while file.tell() < num_bytes:
            for _ in range(ROWS_AT_ONCE):
                text = ". ".join(generator.choices(sentences, k=generator.randint(2, 8)))
                file.write(json.dumps({"id": num_rows, "text": text}) + "\n")
                num_rows += 1
    return num_rows


class Peak(threading.Thread):
    """The most that a process and its children hold together, in bytes, sampled ten times a second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._root = psutil.Process(pid)
        self.pss = self.anonymous = 0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(EVERY_S):
            pss = anonymous = 0
            try:
                for process in [self._root, *self._root.children(recursive=True)]:
                    found = _rollup(process.pid)
                    pss += found.get("Pss", 0)
                    anonymous += found.get("Pss_Anon", 0)
            except psutil.NoSuchProcess:
                continue
            self.pss, self.anonymous = max(self.pss, pss), max(self.anonymous, anonymous)


def _rollup(pid: int) -> dict[str, int]:
    """Sums over a process's memory as the kernel has them, in bytes; {} for one that is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


def main() -> None:
    """Make the file where it is not there, train, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds file, cache and run; made where it is not there")
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--processes", type=int, default=1)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    data = asked.folder / "large.jsonl"
    if not data.exists():
        write(data, int(asked.gigabytes * GIGABYTE))
    (asked.folder / "large.yaml").write_text(RECIPE.format(context=asked.context, processes=asked.processes))
    began = time.time()
    command = [str(Path(sys.executable).with_name("drumline")), "train", "large.yaml"]
    process = subprocess.Popen(command, cwd=asked.folder)
    peak = Peak(process.pid)
    peak.start()
    status = process.wait()
    peak.ended.set()
    peak.join()
    events = list(read_lines(RunDir(asked.folder / "runs/large").events))
    told = {event["event"]: event["time"] - began for event in events}
    report = next((event for event in events if event["event"] == "data_report"), {})
    result = {
        "file_bytes": data.stat().st_size,
        "exit_status": status,
        "seconds": round(time.time() - began, 1),
        "until_report_s": round(told.get("data_report", 0.0), 1),
        "report": {name: report.get("train", {}).get(name) for name in ("rows", "looked_at")},
        "peak_pss_bytes": peak.pss,
        "peak_anonymous_bytes": peak.anonymous,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
