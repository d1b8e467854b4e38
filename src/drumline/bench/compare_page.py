"""The comparison as a table for a terminal, as parts of a report and as a page of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from drumline.errors import MissingExtra
from drumline.track.figures import COLOURS, Plot, figure, from_zero, short
from drumline.track.page import Row, document, figures, section, table
from drumline.track.report import write_page
from drumline.track.units import plain, rate, size

logger = logging.getLogger("drumline.bench.compare")

HEADER = ("", "devices", "units/s", "of the first", "runs", "step", "memory", "losses")


def compare_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """A row of text a contestant, under HEADER; one without a figure says why in the place of its rate."""
    return [_cells(row) for row in result["contestants"]]


def _cells(row: Mapping[str, Any]) -> list[str]:
    first = [row["name"], str(row["num_devices"])]
    if row["status"] != "ran":
        why = row["why"] if row["status"] == "not installed" else f"failed: {row['why']}"
        return [*first, why.splitlines()[0], *[""] * (len(HEADER) - 3)]
    return [
        *first,
        rate(row["units_per_s"], "").removesuffix(" /s"),
        "" if row["ratio"] is None else f"{row['ratio']:.4f}",
        " ".join(f"{value:,.0f}" for value in row["runs"]),
        f"{1000 * row['step_s']:.2f} ms",
        size(row["peak_memory_bytes"]),
        " to ".join(plain(loss) for loss in row["losses"]),
    ]


def compare_sections(result: Mapping[str, Any], svgs: Sequence[str]) -> list[str]:
    """Parts of a page: the plots, the table, what failed, versions and the task."""
    rows = result["contestants"]
    failed = [((row["name"], row["why"]), "warn") for row in rows if row["status"] == "failed"]
    return [
        f'<p class="sub">Task {result["task"].get("name", "")}, {result["rounds"]} rounds, medians; losses are means '
        "over the first and the last updates.</p>\n",
        figures(svgs) if svgs else "",
        section("Contestants", table(HEADER, ((cells, "") for cells in compare_rows(result)), keys=1)),
        section("What failed", table(("", "end of its log"), failed, keys=1)) if failed else "",
        section("Versions", table(("", "versions"), _versions(rows), keys=1)),
        section("Task", table(("", "value"), (((k, str(v)), "") for k, v in result["task"].items()), keys=1)),
    ]


def _versions(rows: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    for row in rows:
        if row["status"] == "ran":
            found = [f"{package} {number}" for package, number in row["versions"].items()]
            yield (row["name"], ", ".join([*found, str(row["device"] or "")])), ""


def draw_compare(result: Mapping[str, Any]) -> Plot:
    """A bar of each contestant's rate, in the order of the table. Raises MissingExtra without matplotlib."""
    rows = [row for row in result["contestants"] if row["status"] == "ran"]
    values = np.array([row["units_per_s"] for row in rows])
    with figure("compare", "Rate by contestant", width=9.6, across="") as (axes, finish):
        axes.bar(range(len(rows)), values, width=0.6, color=COLOURS[0])
        axes.set_xticks(range(len(rows)), [short(row["name"]) for row in rows], rotation=20, ha="right")
        from_zero(axes, values)
        return finish("units per second", values)


def write_compare_page(result: Mapping[str, Any], folder: Path) -> Path:
    """Write index.html and its PNG into the folder and return the page's path; without matplotlib it has no plot."""
    try:
        plots = [draw_compare(result)]
    except MissingExtra as missing:  # what has taken an hour to measure is shown all the same
        logger.warning("the page has no plot: %s", missing)
        plots = []
    page = document("Contestants on the same task", compare_sections(result, [plot.svg for plot in plots]))
    return write_page(folder, page, plots)
