"""The page about several runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drumline.track.comparison import ComparedRun, differences
from drumline.track.page import Row, document, figures, section, table
from drumline.track.report_page import headlines

RUNS_OWN = ("best", "of ")
"""Beginnings of the notes that are about one run; the others say what the number is."""


def render_comparison(runs: Sequence[ComparedRun], svgs: Sequence[str]) -> str:
    """The whole page as text; a run is a column of each table."""
    labels = [run.label for run in runs]
    found = differences([run.records.settings for run in runs])
    same = "" if found else '<p class="sub">All settings are equal.</p>'
    notes = [((run.label, note), "warn") for run in runs for note in run.records.notes]
    parts = [
        f'<p class="sub">{len(runs)} runs</p>\n',
        section("Numbers", table(("", *labels), _rows(runs), keys=1)),
        section(
            "Settings that differ", table(("", *labels), (((k, *v), "") for k, v in found.items()), keys=1) or same
        ),
        figures(svgs),
        section("What could not be read", table(("run", "note"), notes, keys=1)) if notes else "",
        section("Where they are", table(("run", "folder"), (((run.label, str(run.path)), "") for run in runs), keys=1)),
    ]
    return document("Comparison of " + (" and ".join(labels) if len(labels) <= 2 else f"{len(runs)} runs"), parts)


def _rows(runs: Sequence[ComparedRun]) -> Iterator[Row]:
    """How each run ended, then every headline number that any of them has, with its note."""
    yield ("state", *(run.summary.status for run in runs)), ""
    if any(run.summary.message for run in runs):
        yield ("message", *(run.summary.message for run in runs)), ""
    for key in ("device", "world_size", "global_batch", "precision"):
        yield (key.replace("_", " "), *(str(run.records.plan.get(key, "")) for run in runs)), ""
    every = [{_label(*fact): _cell(*fact) for fact in headlines(run.summary)} for run in runs]
    for label in dict.fromkeys(label for facts in every for label in facts):
        yield (label, *(facts.get(label, "") for facts in every)), ""


def _label(label: str, _: str, note: str) -> str:
    return label if not note or note.startswith(RUNS_OWN) else f"{label} ({note})"


def _cell(_: str, value: str, note: str) -> str:
    between = " " if note.startswith("of ") else ", "
    return f"{value}{between}{note}" if note.startswith(RUNS_OWN) else value
