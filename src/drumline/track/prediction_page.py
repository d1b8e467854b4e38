"""The report of a prediction run: one page, and its plots as PNGs beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from drumline.track.page import Row, document, escape, figures, section, table, tile
from drumline.track.prediction import PredictionNumbers, PredictionRecords, read_prediction, summarise_prediction
from drumline.track.report import write_page
from drumline.track.units import as_finite, as_text, duration, leaves, rate

WARNINGS = frozenset({"worker_died", "worker_stuck", "batch_split", "warning", "failed", "gpu_sick", "xid"})
"""Events that are worth a look."""


def write_prediction_report(run: Path, out: Path | None = None) -> Path:
    """Write index.html and the PNGs into `out` (RUN/report unless given) and return the page's path.

    Works for finished, failed and running ones alike. Raises ConfigError for what is no prediction run, MissingExtra
    without matplotlib.
    """
    from drumline.track.prediction_plots import draw_prediction

    records = read_prediction(run)
    plots = draw_prediction(records)
    page = render_prediction(records, summarise_prediction(records), [plot.svg for plot in plots])
    return write_page(out if out is not None else run / "report", page, plots)


def render_prediction(records: PredictionRecords, numbers: PredictionNumbers, svgs: Sequence[str]) -> str:
    """The whole page as text."""
    summary = records.summary
    start = min((time for event in records.events if (time := as_finite(event.get("time"))) is not None), default=None)
    noted: list[Row] = [(("", "report", note), "warn") for note in records.notes]
    events = [_event(event, start) for event in records.events]
    facts: list[Row] = [((key, as_text(value)), "") for key, value in leaves(records.env)]
    errors: list[Row] = [((f"{count:,}", text), "warn") for text, count in _counts(summary.get("errors"))]
    parts = [
        _status(numbers),
        f'<div class="tiles">{"".join(tile(*each) for each in prediction_headlines(numbers))}</div>\n',
        figures(svgs),
        section("Errors", table(("rows", "error"), errors, keys=1)) if numbers.rows_failed else "",
        section("Labels", _scores(summary)) if summary.get("labels") or summary.get("f1") else "",
        section("Workers", table(_WORKER, map(_worker, records.workers.items()), keys=1)),
        section("Events", table(("time", "event", "message"), noted + events, keys=2)),
        section("Environment", table(("", "value"), facts, keys=1)),
        section("Config", f"<pre>{escape(records.config)}</pre>" if records.config else ""),
    ]
    return document(records.name, parts)


def prediction_headlines(numbers: PredictionNumbers) -> Iterator[tuple[str, str, str]]:
    """Label, value and note of each headline number that is known."""
    of = numbers.rows_total
    yield "rows", f"{numbers.rows_done:,}", f"of {of:,}" if of is not None and of != numbers.rows_done else ""
    yield "rows with an error", f"{numbers.rows_failed:,}", ""
    if numbers.rows_per_s is not None:
        yield "rows/s", rate(numbers.rows_per_s, "").removesuffix(" /s"), "of all workers together"
    if numbers.tokens_per_s:
        yield "tokens/s", rate(numbers.tokens_per_s, "").removesuffix(" /s"), f"{numbers.new_tokens:,} written in all"
    if numbers.worked_s is not None:
        yield "time", duration(numbers.worked_s), "without pauses"
    if numbers.busy_share is not None:
        workers = f"{numbers.num_workers:,} workers" if numbers.num_workers > 1 else "its worker"
        yield "in the model", f"{100 * numbers.busy_share:.0f}%", f"of the time of {workers}"
    for name, value in (
        ("accuracy", numbers.accuracy),
        ("F1, macro", numbers.f1_macro),
        ("F1, micro", numbers.f1_micro),
    ):
        if value is not None:
            yield name, f"{value:.4f}", ""


def _status(numbers: PredictionNumbers) -> str:
    mood = {0: "good", 3: "open", None: "open"}.get(numbers.exit_status, "bad")
    message = f" &middot; {escape(numbers.message)}" if numbers.message else ""
    return f'<p class="sub"><span class="badge {mood}">{escape(numbers.status)}</span>{message}</p>\n'


def _scores(summary: Mapping[str, Any]) -> str:
    """A row a label: how often it was answered, and how well where the right answers are known."""
    answered = dict(_counts(summary.get("labels")))
    f1 = summary.get("f1")
    classes = f1.get("classes") if isinstance(f1, Mapping) else None
    scores: Mapping[str, Any] = classes if isinstance(classes, Mapping) else {}

    def row(label: str) -> Row:
        each = scores.get(label)
        known = each if isinstance(each, Mapping) else {}
        values = [as_finite(known.get(name)) for name in ("precision", "recall", "f1")]
        right = as_finite(known.get("num_rows"))
        numbers = ["" if value is None else f"{value:.4f}" for value in values]
        return [label, f"{answered.get(label, 0):,}", "" if right is None else f"{right:,.0f}", *numbers], ""

    headers = ["label", "answered", "right answers", "precision", "recall", "F1"]
    return table(headers, map(row, sorted({*answered, *scores})), keys=1)


_WORKER = ("worker", "rows", "failed", "batches", "tokens", "in the model")


def _worker(worker: tuple[str, Sequence[Mapping[str, Any]]]) -> Row:
    name, lines = worker
    last = lines[-1] if lines else {}
    counts = [f"{as_finite(last.get(key)) or 0:,.0f}" for key in ("rows", "failed", "batches", "tokens")]
    return [name, *counts, duration(as_finite(last.get("busy_s")))], ""


def _event(event: Mapping[str, Any], start: float | None) -> Row:
    rest = [f"{key} {as_text(value)}" for key, value in event.items() if key not in {"time", "event", "message"}]
    time, message = as_finite(event.get("time")), str(event.get("message", ""))
    since = "" if time is None or start is None else f"+{duration(time - start)}"
    name = str(event.get("event", ""))
    return (since, name, "; ".join([message, *rest] if message else rest)), "warn" if name in WARNINGS else ""


def _counts(found: Any) -> list[tuple[str, int]]:
    pairs = found.items() if isinstance(found, Mapping) else ()
    known = [(str(name), int(count)) for name, value in pairs if (count := as_finite(value)) is not None]
    return sorted(known, key=lambda pair: (-pair[1], pair[0]))
