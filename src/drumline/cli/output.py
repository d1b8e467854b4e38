"""How commands print: results on standard output, JSON on request, errors on standard error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import typer

from drumline.errors import DrumlineError


def print_json(value: Any) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(value, indent=2))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a header; long cells wrap at the terminal's width."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row))
    Console().print(table)


def print_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a header, every cell whole and in one line: the last columns are left out where they do not fit.

    For rows with ids, which are copied from there.
    """
    from rich import box
    from rich.table import Table

    from drumline.cli.screen import table_console

    console, table = table_console(), Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    left = console.width - 2
    for number, name in enumerate(header):
        left -= max(len(name), *(len(row[number]) for row in rows)) + 3
        if left < 0 and number > 0:
            break
        table.add_column(name, no_wrap=True, overflow="ignore")
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row[: len(table.columns)]))
    console.print(table)


def print_error(error: DrumlineError) -> None:
    """Print what is wrong and the fix on standard error."""
    typer.echo(f"{typer.style('error', fg='red', bold=True)}: {error}", err=True)


def _plain(cell: str) -> Any:
    from rich.text import Text

    # A cell is never markup: a path or a reason may hold square brackets.
    return Text(cell)
