"""What the report's pages are made of: every text is escaped, nothing is loaded, nothing is executed."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from drumline import __version__

MAX_ROWS = 200
"""Rows of a table; beyond it the first and last half are shown."""

STYLE = """
:root { color-scheme: light dark; --ink: #1d232b; --muted: #5f6b7a; --line: #e3e7ec; --page: #f5f7f9; --card: #ffffff;
  --train: #2563c4; --eval: #d3541b; --green: #1a7f4b; --purple: #8b3fb5; --ochre: #a87b12; --teal: #0e8491;
  --rose: #b83263; --olive: #6f6a3c; --good: #1a7f4b; --bad: #c22f2f; --open: #96690a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e5e9ee; --muted: #9aa6b4; --line: #323a44; --page: #14181d;
  --card: #1c2229; --train: #79abf5; --eval: #f2925f; --green: #5cc38d; --purple: #c793ea;
  --ochre: #dcb04e; --teal: #58c4cf; --rose: #f083a9; --olive: #bdb77c; --good: #5cc38d;
  --bad: #f07f7f; --open: #dcb04e; } }
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
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.key, th.key { white-space: nowrap; width: 1%; padding-right: 28px; }
tr.warn td { color: var(--open); } tr.best td { font-weight: 650; }
pre { margin: 0; font: 13px/1.5 ui-monospace, Consolas, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
footer { color: var(--muted); font-size: 13px; }
@media screen and (max-width: 760px) { .plots { grid-template-columns: 1fr; } }
@media print { body { background: #fff; } main { max-width: none; padding: 0; } .scroll { max-height: none; }
  .card { break-inside: avoid; } .card:has(.scroll) { break-inside: auto; } }
"""


def document(title: str, parts: Iterable[str]) -> str:
    """A whole page of finished parts; the title is escaped."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)} - drumline report</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
{"".join(parts)}
<footer>Written by drumline {__version__} from the run directory. Each plot lies beside this page as a PNG.</footer>
</main>
</body>
</html>
"""


def escape(value: Any) -> str:
    """A text that is no markup."""
    return html.escape(str(value), quote=True)


def figures(svgs: Iterable[str]) -> str:
    """The plots, the first one over the whole width."""
    return f'<div class="plots">{"".join(f"""<figure class="card">{svg}</figure>""" for svg in svgs)}</div>\n'


def tile(label: str, value: str, note: str = "") -> str:
    """A headline number."""
    small = f"<small>{escape(note)}</small>" if note else ""
    return f'<dl class="card tile"><dt>{escape(label)}</dt><dd>{escape(value)}{small}</dd></dl>'


def section(title: str, body: str) -> str:
    """A card with a heading; an empty body says that nothing was recorded."""
    content = body or "<p class='sub'>Nothing was recorded.</p>"
    return f'<section class="card"><h2>{escape(title)}</h2><div class="scroll" tabindex="0">{content}</div></section>\n'


Row = tuple[Sequence[str], str]
"""Cells and the row's CSS class."""


def table(headers: Sequence[str], rows: Iterable[Row], keys: int = 0, numbers: bool = False) -> str:
    """An HTML table; the first `keys` columns do not wrap. Empty for no rows, shortened in the middle for many."""
    every = list(rows)
    if not every:
        return ""
    if len(every) > MAX_ROWS:
        left_out = [f"… {len(every) - MAX_ROWS} rows left out", *[""] * (len(headers) - 1)]
        every = [*every[: MAX_ROWS // 2], (left_out, ""), *every[-MAX_ROWS // 2 :]]

    def cell(tag: str, column: int, text: str) -> str:
        kind = ' class="number"' if numbers else ' class="key"' if column < keys else ""
        return f"<{tag}{kind}>{escape(text)}</{tag}>"

    head = "".join(cell("th", column, text) for column, text in enumerate(headers))
    lines = [
        f'<tr class="{style}">{"".join(cell("td", column, text) for column, text in enumerate(cells))}</tr>'
        for cells, style in every
    ]
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
