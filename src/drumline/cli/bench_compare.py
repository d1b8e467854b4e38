"""`drumline bench compare`: one task through drumline and whatever else is installed, taking turns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from drumline.cli.options import Json
from drumline.cli.output import print_json, print_table

END_S = 30.0
"""How long the comparison may take to end its contestants after Ctrl-C."""


def compare(
    task: Annotated[
        str, typer.Option(help="A task of the contestants' folder, or the path of its .json file.")
    ] = "tiny",
    peers: Annotated[str, typer.Option(help="Contestants, by the beginning of their names, as a,b; none: all.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each; they take turns.")] = 3,
    devices: Annotated[int | None, typer.Option(min=1, help="GPUs or CPU processes; none: as the task says.")] = None,
    peers_dir: Annotated[Path, typer.Option(help="Folder of the contestants.")] = Path("benchmarks/peers"),
    out: Annotated[Path, typer.Option(help="Folder for runs, logs and the page.")] = Path("bench/compare"),
    as_json: Json = False,
) -> None:
    """Run one task through every contestant that is installed, in turn, on the same devices, and compare rates."""
    from drumline.errors import LaunchError
    from drumline.rundir import read_json, write_json

    out.mkdir(parents=True, exist_ok=True)
    names = [name.strip() for name in peers.split(",") if name.strip()]
    options: dict[str, Any] = {"task": task, "peers": names, "rounds": rounds, "peers_dir": str(peers_dir)}
    request = out / "request.json"
    write_json(request, {**options, "out": str(out), "num_devices": devices})
    status = run_child([sys.executable, "-m", "drumline.bench.compare", str(request)])
    if status:
        raise typer.Exit(status)
    result = out / "result.json"
    if not result.exists():
        raise LaunchError("the comparison ended without a result", f"see {out / 'logs'}")
    known = read_json(result)
    if as_json:
        print_json({"directory": str(out), "page": str(out / "index.html"), "result": known})
        return
    print_table(
        ["contestant", "devices", "units/s", "of the first", "step"], [cells(row) for row in known["contestants"]]
    )
    typer.echo(f"report: {out / 'index.html'}")


def cells(row: dict[str, Any]) -> list[str]:
    """One contestant as text; without a figure, why."""
    first = [row["name"], str(row["num_devices"])]
    if row["status"] != "ran":
        return [*first, row["why"].splitlines()[0], "", ""]
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.3f}"
    return [*first, f"{row['units_per_s']:,.0f}", ratio, f"{1000 * row['step_s']:.2f} ms"]


def run_child(command: list[str]) -> int:
    """Run a process to its end, its output on standard error; an interruption is passed on, and its end waited for."""
    from drumline.launcher.processes import die_with_parent

    # A process group of its own: Ctrl-C in the terminal reaches this process alone, which passes it on once.
    parent = partial(die_with_parent, signal.SIGTERM, os.getpid())
    child = subprocess.Popen(command, stdout=sys.stderr, process_group=0, preexec_fn=parent)
    try:
        return child.wait()
    except KeyboardInterrupt:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(END_S)
        finally:
            child.kill()
        raise
