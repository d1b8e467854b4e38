"""The report of a benchmark: one page, and its plots as PNGs beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drumline.errors import MissingExtra
from drumline.rundir import write_atomic
from drumline.track.bench import REPORT, size_of
from drumline.track.bench_plots import PHASES, draw_bench
from drumline.track.page import Row, document, escape, figures, section, table, tile
from drumline.track.profile_page import profile_sections
from drumline.track.units import as_text, leaves, rate, size

Result = Mapping[str, Any]


def write_bench_report(directory: Path, result: Result, config: str = "") -> Path:
    """Write report.html and the PNGs into the benchmark's folder; returns the page's path.

    Without matplotlib the page has its tables, and says what is missing.
    """
    try:
        plots = draw_bench(result)
    except MissingExtra as error:
        plots, missing = [], f'<p class="sub">No plots: {escape(error.problem)}; {escape(error.fix)}</p>\n'
    else:
        missing = figures([plot.svg for plot in plots])
    for plot in plots:
        write_atomic(directory / f"{plot.name}.png", plot.png)
    tiles = "".join(tile(*each) for each in headlines(result))
    warnings = [((text,), "warn") for text in result.get("warnings", [])]
    header, rows = table_of(result)
    facts = {name: result[name] for name in ("device", "world_size", "versions", "machine") if name in result}
    parts = [
        f'<p class="sub">{escape(sentence(result))}</p>\n',
        f'<div class="tiles">{tiles}</div>\n' if tiles else "",
        missing,
        section("Warnings", table(("",), warnings)) if warnings else "",
        section("Against the baseline", _comparison(result)) if result.get("comparison") else "",
        section("Numbers", table(header, [(row, "") for row in rows], keys=1)),
        *profile_sections(result),
        section("Machine", table(("", "value"), _facts(facts), keys=1)),
        section("Config", f"<pre>{escape(config)}</pre>") if config else "",
    ]
    page = directory / REPORT
    write_atomic(page, document(str(result.get("title") or directory.name), parts))
    return page


def sentence(result: Result) -> str:
    """What the result comes to."""
    found = result.get("message") or result.get("advice")
    return str(found) if found else f"bench {result['kind']}"


def headlines(result: Result) -> Iterator[tuple[str, str, str]]:
    """Label, value and note of each headline number."""
    if result["kind"] != "train":
        return
    step = result["step_s"]
    yield "step", f"{1000 * step['median']:.2f} ms", f"{1000 * step['low']:.2f} to {1000 * step['high']:.2f} at 95%"
    yield f"{result['unit']}/s", rate(result["units_per_s"], "").removesuffix(" /s"), f"{step['count']} updates"
    if result["mfu"] is not None:
        yield "MFU", f"{100 * result['mfu']:.1f}%", "of the cards' peak"
    peaks = [peak for memory in result["memory"] if (peak := most_memory(memory)) is not None]
    if peaks:
        yield "memory", size(max(peaks)), "peak, highest of all ranks"
    if result["verdict"]:
        yield "bound by", str(result["verdict"]), ""


def most_memory(memory: Mapping[str, int]) -> int | None:
    """A rank's peak: of its tensors on the GPU, else of its process."""
    return memory.get("peak_allocated_bytes", memory.get("peak_resident_bytes"))


def table_of(result: Result) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a result, as text, for terminal and page."""
    kind, rows = result["kind"], result.get("rows", [])
    if kind == "train":
        return ["", "value"], [list(row) for row in _train_rows(result)]
    if kind == "comm":
        header = ["collective", "message", "time", "algorithm", "bus"]
        return header, [_comm_row(row) for row in rows]
    if kind == "data":
        header = ["loader processes", "rows/s", "batches/s", "first window"]
        return header, [
            [
                str(row["num_workers"]),
                f"{row['rows_per_s']:,.0f}",
                f"{row['batches_per_s']:,.1f}",
                f"{row['first_window_s']:.2f} s",
            ]
            for row in rows
        ]
    header = ["mode", "processes", "global batch", "step", f"{result['unit']}/s", "speed-up", "efficiency"]
    return header, [
        [
            row["mode"],
            str(row["processes"]),
            str(row["global_batch"]),
            f"{1000 * row['step_s']['median']:.2f} ms",
            f"{row['units_per_s']:,.0f}",
            f"{row['speed_up']:.2f}",
            f"{100 * row['efficiency']:.1f}%",
        ]
        for row in rows
    ]


def _comm_row(row: Mapping[str, Any]) -> list[str]:
    algorithm, bus = (f"{row[key] / 1e9:.3f} GB/s" for key in ("algorithm_bytes_per_s", "bus_bytes_per_s"))
    return [row["collective"], size_of(row["bytes"]), f"{1e6 * row['seconds']['median']:.1f} µs", algorithm, bus]


def _train_rows(result: Result) -> Iterator[tuple[str, str]]:
    step = result["step_s"]
    yield "step time, median", f"{1000 * step['median']:.3f} ms"
    yield "its 95% interval", f"{1000 * step['low']:.3f} to {1000 * step['high']:.3f} ms"
    yield "median absolute deviation", f"{1000 * step['mad']:.3f} ms"
    yield "updates timed", f"{step['count']}, {step['warm_up_dropped']} more dropped as warm-up"
    yield "outliers among them", str(len(step["outliers"]))
    yield f"{result['unit']}/s", f"{result['units_per_s']:,.0f}"
    yield "samples/s", f"{result['samples_per_s']:,.1f}"
    yield "MFU", "not known" if result["mfu"] is None else f"{100 * result['mfu']:.1f}%"
    for key, label in PHASES:
        if key in result["phases"]:
            yield label, f"{1000 * result['phases'][key]:.3f} ms"
    for rank, memory in enumerate(result["memory"]):
        yield f"memory of rank {rank}", ", ".join(f"{size(v)} {k.removesuffix('_bytes')}" for k, v in memory.items())


def _comparison(result: Result) -> str:
    rows: list[Row] = [
        (
            [each["name"], each["verdict"], f"{100 * each['change']:+.1f}%", each["reason"]],
            "warn" if each["verdict"] == "change" else "",
        )
        for each in result["comparison"]
    ]
    return table(("", "", "now against then", "why"), rows, keys=2)


def _facts(facts: Mapping[str, Any]) -> Iterator[Row]:
    for key, value in leaves(facts):
        yield (key, as_text(value)), ""
