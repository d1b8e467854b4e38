"""Several runs beside each other: which settings differ, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumline.track.report import RunRecords, Summary, read_run, summarise, write_page
from drumline.track.units import as_text, leaves

NAMING = ("name", "run_dir")
"""Settings that say which run it is, and not how it runs."""

NOT_SET = "not set"


@dataclass(frozen=True)
class ComparedRun:
    """One of the runs; `label` is its name, with as much of its path as tells it from the others of that name."""

    label: str
    path: Path
    records: RunRecords
    summary: Summary


def read_runs(paths: Sequence[Path]) -> list[ComparedRun]:
    """Read run directories, in order; one that is given twice counts once."""
    folders = list(dict.fromkeys(path.resolve() for path in paths))
    every = [read_run(folder) for folder in folders]
    labels = tell_apart([records.name for records in every], folders)
    rows = zip(labels, folders, every, strict=True)
    return [ComparedRun(label, folder, records, summarise(records)) for label, folder, records in rows]


def tell_apart(names: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """The names; where several are equal, each with the shortest ends of the folders' paths that differ."""
    labels = []
    for name, folder in zip(names, folders, strict=True):
        alike = [other for other, its in zip(folders, names, strict=True) if its == name and other != folder]
        length = 1
        while any(other.parts[-length:] == folder.parts[-length:] for other in alike):
            length += 1
        labels.append(f"{name} ({Path(*folder.parts[-length:])})" if alike else name)
    return labels


def differences(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Dotted key -> each run's value as text, of the settings that are not equal in all runs.

    A run without a readable config.yaml (empty here) has no say in what differs; its values are `unknown`.
    """
    flat = [{key: as_text(value) for key, value in leaves(each)} for each in settings]
    keys = dict.fromkeys(key for each in flat for key in each if key not in NAMING)
    found = {}
    for key in keys:
        values = [each.get(key, NOT_SET) if each else "unknown" for each in flat]
        if len({value for value, each in zip(values, flat, strict=True) if each}) > 1:
            found[key] = values
    return found


def write_comparison(runs: Sequence[ComparedRun], folder: Path) -> Path:
    """Write index.html and the PNGs into the folder, which is made, and return the page's path.

    The page is whole in itself: it loads nothing. Raises MissingExtra without matplotlib.
    """
    from drumline.track.comparison_page import render_comparison
    from drumline.track.comparison_plots import Curves, draw_comparison

    plots = draw_comparison([Curves(run.label, run.records.train, run.records.evals) for run in runs])
    return write_page(folder, render_comparison(runs, [plot.svg for plot in plots]), plots)
