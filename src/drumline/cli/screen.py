"""Where tables and live views go: a terminal with colours and keys, or lines for files, pipes and simple terminals."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 160
"""Columns where nothing says how wide the reader's window is."""


def is_screen() -> bool:
    """Whether standard output is a terminal that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb").lower() not in ("", "dumb", "unknown")


def table_console() -> Console:
    """A console on standard output; characters that it lacks are replaced, colours only go to terminals."""
    from rich.console import Console

    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    if not encoding.lower().startswith("utf") and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    screen = is_screen()
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(file=sys.stdout, width=width, force_terminal=screen, force_jupyter=False, highlight=False)


@contextmanager
def log_lines() -> Iterator[None]:
    """Show the log of drumline on standard error, each line with its time; for commands that run for long."""
    import logging

    logger, handler = logging.getLogger("drumline"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextmanager
def readers_may_leave() -> Iterator[None]:
    """Ends the command quietly where who reads its output goes away, as `head` does."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None
