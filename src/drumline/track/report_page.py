"""The page about one run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from drumline.track.gpu_page import alert_sections, energy, gpu_sections
from drumline.track.page import Row, document, escape, figures, section, table, tile
from drumline.track.profile_page import profile_sections, verdict_of
from drumline.track.report import Record, RunRecords, Summary
from drumline.track.units import as_float, as_text, duration, leaves, plain, rate, size, span

MAX_TILES = 3
"""Evaluation metrics beside the loss that have a tile; the table of evaluations has all."""

MAX_RANKS = 16
"""Values of a list by rank that are written out; of more, lowest and highest."""


def render_page(records: RunRecords, summary: Summary, svgs: Sequence[str], gpu_svgs: Sequence[str] = ()) -> str:
    """The whole page as text; gpu_svgs: plots of the GPUs, which have a place of their own."""
    start = _first_time(records)
    noted = [(("", "report", "", note), "warn") for note in records.notes]
    events = [_event_row(event, start) for event in records.events if event.get("event") != "alert"]
    last = records.train[-1] if records.train else {}
    facts = [((key, as_text(value)), "") for key, value in leaves(records.env)]
    parts = [
        _status(summary, start),
        f'<div class="tiles">{"".join(_tiles(summary))}</div>\n',
        figures(svgs),
        section("Evaluations", _evaluations(records.evals, summary.best_eval_step)),
        section("Last log line", table(("", "value"), _values(last), keys=1)),
        *_profile(records.profile),
        figures(gpu_svgs) if gpu_svgs else "",
        *gpu_sections(records.gpus, records.env),
        *alert_sections(records.events, start),
        section("Plan", table(("", "value", "why"), _plan_rows(records.plan), keys=1)),
        section("Warnings and events", table(("time", "event", "rank", "message"), noted + events, keys=2)),
        section("Environment", table(("", "value"), facts, keys=1)),
        section("Config", f"<pre>{escape(records.config)}</pre>" if records.config else ""),
    ]
    return document(records.name, parts)


def _profile(profile: Record) -> Iterator[str]:
    if profile:
        yield section(f"Bound by {profile.get('verdict', 'nothing known')}", verdict_of(profile))
        yield from profile_sections(profile)


def headlines(summary: Summary) -> Iterator[tuple[str, str, str]]:
    """Label, value and note of each headline number that is known."""
    if summary.last_eval_loss is not None or summary.best_eval_loss is not None:
        last = "not finite" if summary.last_eval_loss is None else plain(summary.last_eval_loss)
        best = f"best {plain(summary.best_eval_loss)} at update {plain(summary.best_eval_step)}"
        yield "evaluation loss", last, best if summary.best_eval_loss is not None else ""
    elif summary.last_train_loss is not None:
        yield "training loss", plain(summary.last_train_loss), "last log line"
    for name, value in summary.last_eval_metrics.items():
        yield f"evaluation {name}", "not finite" if value is None else plain(value), ""
    if summary.steps is not None:
        yield "updates", f"{summary.steps:,}", f"of {summary.total_steps:,}" if summary.total_steps else ""
    if summary.duration_s is not None:
        yield "duration", duration(summary.duration_s), ""
    if summary.units_per_s is not None:
        yield f"{summary.unit}/s", rate(summary.units_per_s, "").removesuffix(" /s"), "median"
    if summary.mfu is not None:
        yield "MFU", f"{100 * summary.mfu:.1f}%", "median"
    if summary.memory_bytes is not None:
        yield "memory", size(summary.memory_bytes), "highest of all ranks"
    if summary.energy_j is not None and summary.gpu_s is not None:
        yield "GPU energy", energy(summary.energy_j), ""
        yield "GPU hours", f"{summary.gpu_s / 3600:,.2f}", ""
    if summary.cost is not None:
        yield "cost", f"{summary.cost:,.2f}", ""


def _tiles(summary: Summary) -> Iterator[str]:
    first = dict(list(summary.last_eval_metrics.items())[:MAX_TILES])
    return (tile(*fact) for fact in headlines(replace(summary, last_eval_metrics=first)))


def _status(summary: Summary, started: float | None) -> str:
    mood = {0: "good", 3: "open", None: "open"}.get(summary.exit_status, "bad")
    message = f" &middot; {escape(summary.message)}" if summary.message else ""
    when = f" &middot; started {_clock(started, '%Y-%m-%d %H:%M:%S')}" if started is not None else ""
    badge = f'<span class="badge {mood}">{escape(summary.status)}</span>'
    return f'<p class="sub">{badge}{message}{when}</p>\n'


def _evaluations(evals: Sequence[Record], best_step: int | None) -> str:
    hidden = {"time", "kind", "step", "loss", "count", "epoch", "elapsed_s"}
    extra = list(dict.fromkeys(key for record in evals for key in record if key not in hidden))
    headers = ["update", "epoch", "loss", *extra, "samples", "elapsed"]

    def row(record: Record) -> Row:
        middle = [_value(key, record[key]) if key in record else "" for key in ("loss", *extra)]
        first = [plain(record[key]) if key in record else "" for key in ("step", "epoch")]
        last = [plain(record.get("count", "")), duration(as_float(record.get("elapsed_s")))]
        best = best_step is not None and record.get("step") == best_step
        return [*first, *middle, *last], "best" if best else ""

    return table(headers, map(row, evals), numbers=True)


def _values(record: Record) -> Iterator[Row]:
    for key, value in record.items():
        if key not in {"time", "kind"}:
            yield (key, _value(key, value)), ""


def _value(key: str, value: Any) -> str:
    """A record's value; of a list each rank's, or the span where there are many."""

    def write(number: Any) -> str:
        known = as_float(number)
        return size(known) if known is not None and math.isfinite(known) and key.endswith("_bytes") else plain(number)

    if not isinstance(value, list):
        return write(value)
    return span(value, write) if len(value) > MAX_RANKS else ", ".join(map(write, value))


def _plan_rows(plan: Record) -> Iterator[Row]:
    reasons = plan.get("reasons")
    why = reasons if isinstance(reasons, dict) else {}
    for key, value in plan.items():
        if key != "reasons":
            yield (key.replace("_", " "), as_text(value), str(why.get(key, ""))), ""


def _event_row(event: Record, start: float | None) -> Row:
    rest = [
        f"{key} {as_text(value)}" for key, value in event.items() if key not in {"time", "event", "rank", "message"}
    ]
    message = str(event.get("message", ""))
    time = as_float(event.get("time"))
    since = "" if time is None or start is None else f"+{duration(time - start)}"
    name = str(event.get("event", ""))
    warn = "warn" if name in {"warning", "skipped", "failed", "tracker_failed", "xid", "gpu_sick"} else ""
    return (since, name, as_text(event.get("rank", "")), "; ".join([message, *rest] if message else rest)), warn


def _first_time(records: RunRecords) -> float | None:
    times = (as_float(record.get("time")) for record in [*records.events, *records.train, *records.evals])
    return min((time for time in times if time is not None and math.isfinite(time)), default=None)


def _clock(time: float, layout: str) -> str:
    try:
        return datetime.fromtimestamp(time).astimezone().strftime(layout)
    except (OverflowError, ValueError, OSError):  # no date that a calendar has
        return str(time)
