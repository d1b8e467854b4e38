"""Results of benchmarks: what is comparable, the history, and whether something changed; reads files only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drumline.errors import ConfigError
from drumline.rundir import LineWriter, read_json, read_lines
from drumline.track.samples import compare
from drumline.track.units import size

RESULT, REPORT, HISTORY = "result.json", "report.html", "history.jsonl"
"""Files of a benchmark's folder, and beside all of them."""

Result = Mapping[str, Any]


def key_of(kind: str, config: Mapping[str, Any], devices: Sequence[str]) -> str:
    """What two results must have in common to be compared unasked: kind, settings and devices, as a short text.

    Names and folders of a run do not count.
    """
    settings = {name: value for name, value in config.items() if name not in ("name", "run_dir")}
    text = json.dumps([kind, settings, list(devices)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def measurements(result: Result) -> dict[str, list[float]]:
    """Samples of all that a result measured, by a name for people: seconds, of the loader rows a second."""
    kind = result["kind"]
    if kind == "train":
        return {"step time": result["step_s"]["samples"]}
    if kind == "comm":
        return {f"{row['collective']} of {size_of(row['bytes'])}": row["seconds"]["samples"] for row in result["rows"]}
    if kind == "data":
        return {
            f"rows/s with {row['num_workers']} loader processes": row["interval"]["samples"] for row in result["rows"]
        }
    return {
        f"step time, {row['mode']}, {row['processes']} processes": row["step_s"]["samples"] for row in result["rows"]
    }


def size_of(num_bytes: float) -> str:
    """Bytes as people name message sizes."""
    return size(num_bytes) if num_bytes >= 2**20 else f"{num_bytes / 2**10:g} KiB"


def remember(history: Path, result: Result, directory: Path) -> None:
    """Append one line about a result to the history."""
    writer = LineWriter(history)
    try:
        facts = {name: result.get(name) for name in ("kind", "key", "title", "device", "world_size", "versions")}
        numbers = {name: result[name] for name in ("units_per_s", "mfu", "advice") if result.get(name) is not None}
        where = {"directory": str(directory), "measurements": measurements(result)}
        writer.write({**facts, **numbers, **where})
    finally:
        writer.close()


def last_alike(history: Path, key: str) -> dict[str, Any] | None:
    """The history's newest line with this key; None where there is none."""
    return next((line for line in reversed(list(read_lines(history))) if line.get("key") == key), None)


def read_baseline(path: Path, kind: str) -> dict[str, Any]:
    """A benchmark's folder, its result.json, or a history, of which the newest line of this kind counts.

    Raises ConfigError for anything else, and for a result of another kind.
    """
    file = path / RESULT if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(
            f"there is no result {file}", "give a benchmark's folder, its result.json, or a history.jsonl"
        )
    try:
        if file.suffix == ".jsonl":
            found = [line for line in read_lines(file) if line.get("kind") == kind]
            known = found[-1] if found else {}
        else:
            known = read_json(file)
            known = {**known, "measurements": measurements(known)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} is no result of a benchmark: {error}", "give its folder or result.json") from None
    if known.get("kind") != kind:
        raise ConfigError(f"{file} holds no result of bench {kind}", "compare two results of one kind")
    return known


def compare_results(baseline: Result, now: Result) -> list[dict[str, Any]]:
    """One record for each thing that both measured: its name, the verdict and the size; see `samples.compare`."""
    before, after = baseline["measurements"], measurements(now)
    return [
        {"name": name, **compare(before[name], samples).to_json()} for name, samples in after.items() if name in before
    ]


def efficiencies(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of bench scaling with speed-up and efficiency, each against the fewest processes of its mode.

    Efficiency is the rate a process over that of the first row: for strong scaling (one global batch for all) and weak
    scaling (one batch a process) alike.
    """
    found = []
    for row in rows:
        base = min((other for other in rows if other["mode"] == row["mode"]), key=lambda other: other["processes"])
        speed_up = row["units_per_s"] / base["units_per_s"] * base["processes"]
        found.append({**row, "speed_up": speed_up, "efficiency": speed_up / row["processes"]})
    return found
