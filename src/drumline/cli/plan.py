"""`drumline plan`: what a run would do on this machine, and why, before a GPU is taken."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

import typer

from drumline.cli.options import Json, Overrides, Recipe
from drumline.cli.output import print_json, print_table

if TYPE_CHECKING:
    from drumline.config.schema import RunConfig
    from drumline.hardware.claims import Claims
    from drumline.plan.record import Plan

FACTS_LIMIT_S = 120.0
"""Data that is tokenised for the first time may take as long; the run does without the answer then."""


def register(app: typer.Typer) -> None:
    """Add the command `plan`."""
    app.command("plan")(show_plan)


def show_plan(recipe: Recipe, overrides: Overrides = None, as_json: Json = False) -> None:
    """Show what a run would do on this machine, and why. No GPU is touched."""
    from drumline.config.load import load_config

    plan = plan_run(load_config(recipe, overrides or ()), counts=True)
    if as_json:
        print_json(plan.to_json())
    else:
        print_table(
            ["", "plan", "why"], [(name, _cell(name, value), plan.reasons[name]) for name, value in _values(plan)]
        )


def plan_run(config: RunConfig, *, counts: bool, claims: Claims | None = None, chosen: bool = False) -> Plan:
    """The plan of a run on this machine's devices. Raises HardwareError where too few GPUs can be claimed.

    counts: whether a child process, with torch, counts the model and the rows where that decides nothing too. On the
    CPU, where memory is not planned, nobody is asked. claims: with which its GPUs are kept from other launches; None:
    it is only a plan. chosen: the config names GPUs that were chosen before, and nobody looks at them again.
    """
    from drumline.errors import HardwareError
    from drumline.hardware.inventory import detect
    from drumline.launcher.gpus import take_gpus, wanted
    from drumline.plan.memory import ModelFacts
    from drumline.plan.resolve import resolve

    hardware = detect()
    if not chosen:
        try:
            hardware = take_gpus(wanted(config), hardware, claims)
        except HardwareError as error:
            if claims is not None:
                raise
            typer.echo(f"it could not start now: {error.problem}", err=True)
    plan = resolve(config, hardware)
    decides = config.parallel.kind == "auto" and plan.world_size > 1
    if plan.device == "cpu" or not (counts or decides):
        return plan
    answer = ask_facts(config, plan.precision)
    if "error" in answer:
        typer.echo(f"the size of the model is not known: {answer['error']}", err=True)
        return plan
    facts = None if answer["facts"] is None else ModelFacts.from_json(answer["facts"])
    return resolve(config, hardware, None, answer["num_rows"], facts)


def ask_facts(config: RunConfig, precision: str) -> dict[str, Any]:
    """What a child process counts, see build/facts.py; {"error": why} where it cannot. It sees no GPU."""
    from drumline.config.load import dump_config
    from drumline.hardware.torch_child import ask_child

    fixed = config.model_copy(update={"train": config.train.model_copy(update={"precision": precision})})
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(dump_config(fixed))
        file.flush()
        environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        return ask_child(["-P", "-m", "drumline.build.facts", file.name], FACTS_LIMIT_S, environ)


def print_plan(plan: Plan) -> None:
    """Print one line a decision, with its reason: what `drumline train` shows before it takes a device."""
    for name, value in _values(plan):
        if name == "memory_bytes" and value is None:
            continue
        # The reason names the GPUs shorter than their UUIDs would.
        short = str(len(value)) if isinstance(value, tuple) else _cell(name, value)
        typer.echo(f"  {name:<15} {short:<13} {plan.reasons[name]}")


def _values(plan: Plan) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in plan.to_json().items() if name != "reasons"]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "not known" if name == "memory_bytes" else "not known yet"
    if name == "memory_bytes":
        from drumline.plan.memory import gib

        return gib(value)
    return "\n".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
