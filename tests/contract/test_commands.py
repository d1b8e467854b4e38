"""The commands are an interface: adding or renaming one changes this list, knowingly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
import typer.main

from drumline.cli.app import app

COMMANDS = [
    "bench comm",
    "bench compare",
    "bench data",
    "bench scaling",
    "bench train",
    "chat",
    "checkpoints",
    "config copy",
    "config list",
    "config schema",
    "config show",
    "config validate",
    "doctor",
    "eval",
    "export",
    "finetune",
    "gpus",
    "infer",
    "jobs cancel",
    "jobs list",
    "jobs logs",
    "jobs retry",
    "jobs show",
    "jobs submit",
    "launch",
    "merge",
    "monitor",
    "plan",
    "quickstart",
    "report",
    "serve",
    "tokens create",
    "tokens list",
    "tokens revoke",
    "train",
]


def inner_of(command: Any) -> Mapping[str, Any]:
    """Sub-commands by name; none for a command that is no group. (Typer brings its own click: no isinstance.)"""
    commands: Mapping[str, Any] = getattr(command, "commands", {})
    return commands


def names_below(command: Any, name: str = "") -> list[str]:
    """Full names of all commands under this one."""
    inner = inner_of(command)
    if not inner:
        return [name]
    return [full for key, other in inner.items() for full in names_below(other, f"{name} {key}".strip())]


def hidden_or_undescribed(command: Any) -> list[str]:
    """Commands that do not show in the help, or show there without a word on what they do."""
    found = [str(command.name)] if command.hidden or not command.help else []
    return found + [name for other in inner_of(command).values() for name in hidden_or_undescribed(other)]


def test_the_commands_are_these() -> None:
    root = typer.main.get_command(app)
    assert sorted(names_below(root)) == COMMANDS
    assert hidden_or_undescribed(root) == []


def test_the_checks_see_nested_hidden_and_silent_commands() -> None:
    planted, nested = typer.Typer(help="Root."), typer.Typer(help="Nested.")
    planted.command("silent")(lambda: None)
    planted.command("hidden", hidden=True, help="Hidden.")(lambda: None)
    nested.command("told", help="Told.")(lambda: None)
    planted.add_typer(nested, name="nested")
    root = typer.main.get_command(planted)
    assert sorted(names_below(root)) == ["hidden", "nested told", "silent"]
    assert sorted(hidden_or_undescribed(root)) == ["hidden", "silent"]
