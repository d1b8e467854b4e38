"""The report's HTML: every text that comes from a file is escaped, nothing is loaded, nothing is executed."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from drumline import __version__
from drumline.track.plots import Plot
from drumline.track.report import Record, RunRecords, Summary
from drumline.track.units import as_float, duration, plain, rate, size

MAX_ROWS = 200
"""Rows of a table; beyond it the first and last half are shown."""

STYLE = """
:root { color-scheme: light dark; --ink: #1d232b; --muted: #5f6b7a; --line: #e3e7ec; --page: #f5f7f9; --card: #ffffff;
  --train: #2563c4; --eval: #d3541b; --good: #1a7f4b; --bad: #c22f2f; --open: #96690a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e5e9ee; --muted: #9aa6b4; --line: #323a44; --page: #14181d;
  --card: #1c2229; --train: #79abf5; --eval: #f2925f; --good: #5cc38d; --bad: #f07f7f; --open: #dcb04e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, Roboto, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 0 0 12px; }
.sub { color: var(--muted); margin: 0 0 20px; overflow-wrap: anywhere; }
.badge { font-weight: 650; } .good { color: var(--good); } .bad { color: var(--bad); } .open { color: var(--open); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 12px; margin: 0 0 12px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px;
  margin: 0 0 12px; }
.tile { margin: 0; padding: 12px 16px; }
.tile dt { color: var(--muted); font-size: 13px; } .tile dd { margin: 0; font-size: 22px; font-weight: 650; }
.tile small { display: block; color: var(--muted); font-size: 13px; font-weight: 400; }
.plots { display: grid; grid-template-columns: 1fr 1fr; gap: 12px; margin: 0 0 12px; align-items: start; }
.plots .card { margin: 0; padding: 12px; } .plots .card:first-child { grid-column: 1 / -1; }
.plots svg { display: block; width: 100%; height: auto; } .plots svg text { font-family: inherit !important; }
.scroll { overflow: auto; max-height: 30rem; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; vertical-align: top; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); }
th { color: var(--muted); font-weight: 600; } td { overflow-wrap: anywhere; } tr:last-child td { border-bottom: 0; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.key, th.key { white-space: nowrap; width: 1%; padding-right: 28px; }
tr.warn td { color: var(--open); } tr.best td { font-weight: 650; }
pre { margin: 0; font: 13px/1.5 ui-monospace, Consolas, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
footer { color: var(--muted); font-size: 13px; }
@media screen and (max-width: 760px) { .plots { grid-template-columns: 1fr; } }
@media print { body { background: #fff; } main { max-width: none; padding: 0; } .scroll { max-height: none; }
  .card { break-inside: avoid; } .card:has(.scroll) { break-inside: auto; } }
"""


def render_page(records: RunRecords, summary: Summary, plots: Sequence[Plot]) -> str:
    """The whole page as text."""
    evaluations = _evaluations(records.evals, summary.best_eval_step)
    events = [_event_row(event, _first_time(records)) for event in records.events]
    noted = [(("", "report", "", note), "warn") for note in records.notes]
    sections = [
        _section("Evaluations", evaluations),
        _section("Plan", _table(("", "value", "why"), _plan_rows(records.plan), keys=1)),
        _section("Warnings and events", _table(("time", "event", "rank", "message"), noted + events, keys=2)),
        _section("Environment", _table(("", "value"), (((k, v), "") for k, v in flatten(records.env)), keys=1)),
        _section("Config", f"<pre>{_escape(records.config)}</pre>" if records.config else ""),
    ]
    title = _escape(records.name)
    figures = "".join(f'<figure class="card">{plot.svg}</figure>' for plot in plots)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title} - drumline report</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{_status(summary, records)}
<div class="tiles">{"".join(_tiles(summary))}</div>
<div class="plots">{figures}</div>
{"".join(sections)}
<footer>Written by drumline {__version__} from the run directory. Each plot lies beside this page as a PNG.</footer>
</main>
</body>
</html>
"""


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested mappings and lists as (dotted key, text) pairs; a list of plain values stays one text."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and any(isinstance(inner, Mapping | list) for inner in value):
        for index, inner in enumerate(value):
            yield from flatten(inner, f"{prefix}[{index}]")
    elif prefix:
        yield prefix, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None or value == {} else str(value)


def _escape(value: Any) -> str:
    return html.escape(str(value), quote=True)


def _status(summary: Summary, records: RunRecords) -> str:
    mood = {0: "good", 3: "open", None: "open"}.get(summary.exit_status, "bad")
    message = f" &middot; {_escape(summary.message)}" if summary.message else ""
    started = _first_time(records)
    when = f" &middot; started {_clock(started, '%Y-%m-%d %H:%M:%S')}" if started is not None else ""
    return f'<p class="sub"><span class="badge {mood}">{_escape(summary.status)}</span>{message}{when}</p>'


def _tiles(summary: Summary) -> Iterator[str]:
    if summary.last_eval_loss is not None or summary.best_eval_loss is not None:
        last = "not finite" if summary.last_eval_loss is None else plain(summary.last_eval_loss)
        best = f"best {plain(summary.best_eval_loss)} at update {plain(summary.best_eval_step)}"
        yield _tile("evaluation loss", last, best if summary.best_eval_loss is not None else "")
    elif summary.last_train_loss is not None:
        yield _tile("training loss", plain(summary.last_train_loss), "last log line")
    if summary.steps is not None:
        yield _tile("updates", f"{summary.steps:,}", f"of {summary.total_steps:,}" if summary.total_steps else "")
    if summary.duration_s is not None:
        yield _tile("duration", duration(summary.duration_s), "")
    if summary.units_per_s is not None:
        yield _tile(f"{summary.unit}/s", rate(summary.units_per_s, "").removesuffix(" /s"), "median")
    if summary.mfu is not None:
        yield _tile("MFU", f"{100 * summary.mfu:.1f}%", "median")
    if summary.memory_bytes is not None:
        yield _tile("memory", size(summary.memory_bytes), "highest on rank 0")


def _tile(label: str, value: str, note: str) -> str:
    small = f"<small>{_escape(note)}</small>" if note else ""
    return f'<dl class="card tile"><dt>{_escape(label)}</dt><dd>{_escape(value)}{small}</dd></dl>'


def _section(title: str, body: str) -> str:
    content = body or "<p class='sub'>Nothing was recorded.</p>"
    return (
        f'<section class="card"><h2>{_escape(title)}</h2><div class="scroll" tabindex="0">{content}</div></section>\n'
    )


Row = tuple[Sequence[str], str]
"""Cells and the row's CSS class."""


def _table(headers: Sequence[str], rows: Iterable[Row], keys: int = 0, numbers: bool = False) -> str:
    """An HTML table; the first `keys` columns do not wrap. Empty for no rows, shortened in the middle for many."""
    every = list(rows)
    if not every:
        return ""
    if len(every) > MAX_ROWS:
        left_out = [f"… {len(every) - MAX_ROWS} rows left out", *[""] * (len(headers) - 1)]
        every = [*every[: MAX_ROWS // 2], (left_out, ""), *every[-MAX_ROWS // 2 :]]

    def cell(tag: str, column: int, text: str) -> str:
        kind = ' class="number"' if numbers else ' class="key"' if column < keys else ""
        return f"<{tag}{kind}>{_escape(text)}</{tag}>"

    head = "".join(cell("th", column, text) for column, text in enumerate(headers))
    lines = [
        f'<tr class="{style}">{"".join(cell("td", column, text) for column, text in enumerate(cells))}</tr>'
        for cells, style in every
    ]
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _evaluations(evals: Sequence[Record], best_step: int | None) -> str:
    hidden = {"time", "kind", "step", "loss", "count", "epoch", "elapsed_s"}
    extra = list(dict.fromkeys(key for record in evals for key in record if key not in hidden))
    headers = ["update", "epoch", "loss", *extra, "samples", "elapsed"]

    def row(record: Record) -> Row:
        middle = [plain(record[key]) if key in record else "" for key in ("loss", *extra)]
        first = [plain(record[key]) if key in record else "" for key in ("step", "epoch")]
        last = [plain(record.get("count", "")), duration(as_float(record.get("elapsed_s")))]
        best = best_step is not None and record.get("step") == best_step
        return [*first, *middle, *last], "best" if best else ""

    return _table(headers, map(row, evals), numbers=True)


def _plan_rows(plan: Record) -> Iterator[Row]:
    reasons = plan.get("reasons")
    why = reasons if isinstance(reasons, dict) else {}
    for key, value in plan.items():
        if key != "reasons":
            yield (key.replace("_", " "), _text(value), str(why.get(key, ""))), ""


def _event_row(event: Record, start: float | None) -> Row:
    rest = [f"{key} {_text(value)}" for key, value in event.items() if key not in {"time", "event", "rank", "message"}]
    message = str(event.get("message", ""))
    time = as_float(event.get("time"))
    since = "" if time is None or start is None else f"+{duration(time - start)}"
    name = str(event.get("event", ""))
    warn = "warn" if name in {"warning", "skipped", "failed"} else ""
    return (since, name, _text(event.get("rank", "")), "; ".join([message, *rest] if message else rest)), warn


def _first_time(records: RunRecords) -> float | None:
    times = (as_float(record.get("time")) for record in [*records.events, *records.train, *records.evals])
    return min((time for time in times if time is not None and math.isfinite(time)), default=None)


def _clock(time: float, layout: str) -> str:
    try:
        return datetime.fromtimestamp(time).astimezone().strftime(layout)
    except (OverflowError, ValueError, OSError):  # no date that a calendar has
        return str(time)
