"""Writes docs/commands.md from the commands themselves: python -m tests.contract.write_commands"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from drumline.cli.app import app

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
HEAD = """# Commands

Made from the commands; `drumline COMMAND --help` says the same. Exit status of all: 0 done, 1 failed, 2 a request or
setting that cannot be met, 3 stopped, and can be gone on with.
"""


def page() -> str:
    """Markdown, a section a command."""
    root = typer.main.get_command(app)
    return "\n".join([HEAD, *sections(root, "drumline")])


def sections(command: Any, name: str) -> Iterator[str]:
    """The command's own section, or those of its sub-commands."""
    inner = getattr(command, "commands", {})
    for key in sorted(inner):
        yield from sections(inner[key], f"{name} {key}")
    if not inner:
        yield from section(command, name)


def section(command: Any, name: str) -> Iterator[str]:
    """What it does, then a row an argument and option."""
    context = typer.Context(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"## {name}\n\n    {name} {usage}\n\n{text(command.help)}\n"
    shown = [each for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
    if shown:
        yield "| argument or option | what it is | default |\n|---|---|---|"
        yield from (row(each) for each in shown)
        yield ""


def row(parameter: Any) -> str:
    """A row of the table."""
    is_option = parameter.param_type_name == "option"
    names = ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))
    name = names if is_option else f"`{parameter.metavar or parameter.name.upper()}`"
    default = parameter.default
    said = "" if default in (None, False, "", (), []) or callable(default) else f"`{default}`"
    if getattr(parameter, "required", False):
        said = "required"
    return f"| {name} | {text(parameter.help).replace('|', chr(92) + '|')} | {said} |"


def text(help_text: str | None) -> str:
    """On one line a paragraph."""
    paragraphs = (help_text or "").replace("\b", "").split("\n\n")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
