"""Rows of a benchmark: each is made by fresh processes, kept in one file as soon as it is there, and not made again."""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ONE_RUN = str(HERE / "one_run.py")


@dataclass(frozen=True)
class Row:
    """A script and its arguments, which print one JSON line, with RESULT before it or not."""

    name: str
    command: Sequence[str]
    gpus: int
    """GPUs that it sees; 0: none."""
    processes: int = 1
    """More than one: under torch's launcher."""
    limit_s: float = 300.0
    environ: dict[str, str] = field(default_factory=dict)


def arguments(about: str, rounds: int = 1) -> argparse.Namespace:
    """The command line that all of these benchmarks have."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="file of the rows; those that it has are not made again")
    parser.add_argument("--only", nargs="+", default=[], help="rows whose name has one of these in it")
    parser.add_argument("--rounds", type=int, default=rounds, help="times that each row is made, in turn")
    parser.add_argument("--minutes", type=float, default=9.0, help="start no row after so long")
    parser.add_argument("--tiny", action="store_true", help="a small shape on the CPU: does the script itself work?")
    return parser.parse_args()


def num_gpus() -> int:
    """Visible GPUs, counted without starting CUDA here."""
    from drumline.hardware.inventory import detect

    return len(detect().gpus)


def make_rows(asked: argparse.Namespace, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Make what the file lacks, within the minutes; returns every row of the file that has a result."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as `timeout` sends it: the row's processes end first
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    wanted = [row for row in rows if not asked.only or any(part in row.name for part in asked.only)]
    known = {(row["row"], row["round"]) for row in read_rows(asked.out)}
    left = []
    for number in range(1, asked.rounds + 1):
        for row in wanted:
            if (row.name, number) in known:
                continue
            if time.monotonic() - began > 60 * asked.minutes:
                left.append(f"{row.name} ({number})")
                continue
            make_row(row, number, asked.out)
    if left:
        print(f"no time was left for {', '.join(left)}: call it again")
    return read_rows(asked.out)


def read_rows(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def make_row(row: Row, number: int, out: Path) -> None:
    """Run it, and append its line to the file; a failure is printed with the end of its log, and kept nowhere."""
    log = out.with_suffix(".logs") / f"{row.name.replace(' ', '_').replace('/', '_')}.{number}.log"
    log.parent.mkdir(exist_ok=True)
    began = time.monotonic()
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={row.processes}"]
    command = [sys.executable, *(launcher if row.processes > 1 else ()), *row.command]
    with log.open("wb") as output:
        child = subprocess.Popen(
            command, env=environment(row), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: Any = child.wait(row.limit_s)
        except subprocess.TimeoutExpired:
            status = f"not done within {row.limit_s:g} s"
        finally:
            if child.poll() is None:
                end(child)
    text = log.read_text(errors="replace")
    found = [line.removeprefix("RESULT ") for line in text.splitlines() if line.startswith(("{", "RESULT {"))]
    took = time.monotonic() - began
    if status or not found:
        print(f"FAILED {row.name} ({status}) after {took:.0f} s, {log}:")
        print("\n".join(text.splitlines()[-25:]), flush=True)
        return
    line = {"row": row.name, "round": number, "took_s": round(took, 1), **json.loads(found[-1])}
    with out.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(f"{row.name} ({number}): {rate_of(line):,.0f} tokens/s, {took:.0f} s in all", flush=True)


def end(child: subprocess.Popen[Any]) -> None:
    """Ask first: torch's launcher then ends its workers, which are in sessions of their own."""
    os.killpg(child.pid, signal.SIGTERM)
    try:
        child.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def environment(row: Row) -> dict[str, str]:
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = (visible or [str(index) for index in range(row.gpus)])[: row.gpus]
    shown = {"CUDA_VISIBLE_DEVICES": ",".join(names)}
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "4" if row.gpus else "1")}
    return {**os.environ, **shown, **threads, "PYTHONUNBUFFERED": "1", **row.environ}


def rate_of(line: dict[str, Any]) -> float:
    """Tokens a second over all devices, whichever script wrote the line."""
    for key in ("units_per_s", "tokens_per_s"):
        if key in line:
            return float(line[key])
    return float(line["tokens_per_s_per_gpu"] * line["gpus"])


def medians(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The median rate of each row, over its rounds."""
    rates: dict[str, list[float]] = {}
    for line in lines:
        rates.setdefault(line["row"], []).append(rate_of(line))
    return {name: statistics.median(values) for name, values in rates.items()}


def print_rates(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """A line a row, with all its rounds; returns the medians."""
    found = medians(lines)
    if lines:
        torch = lines[0].get("torch") or lines[0].get("versions", {}).get("torch", "")
        print(f"\n{lines[0].get('device', '')}, torch {torch}; tokens/s")
    for name, value in found.items():
        runs = " · ".join(f"{rate_of(line):,.0f}" for line in lines if line["row"] == name)
        print(f"| {name} | {runs} | {value:,.0f} |")
    return found


def print_ratio(rates: dict[str, float], one: str, other: str, bar: float, factor: float = 1.0) -> None:
    """`factor` times the ratio of two rows, beside what it should be; nothing where one of them is missing."""
    if one in rates and other in rates:
        ratio = factor * rates[one] / rates[other]
        times = "" if factor == 1 else f" x {factor:.4g}"
        print(f"{one} / {other}{times} = {ratio:.4f} (bar {bar}: {'reached' if ratio >= bar else 'NOT reached'})")
