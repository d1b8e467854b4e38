"""`drumline monitor`: GPUs, their health and the runs of this machine, live, as lines, or for Prometheus."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drumline.errors import ConfigError

if TYPE_CHECKING:
    from drumline.config.monitor import MonitorConfig
    from drumline.monitor.machine_watch import MachineWatch
    from drumline.monitor.scene import Scene

LINES_EVERY_S, SCREEN_EVERY_S = 60.0, 1.0


def register(app: typer.Typer) -> None:
    """Add the command `monitor`."""
    app.command("monitor")(monitor)


def monitor(
    once: Annotated[bool, typer.Option("--once", help="Show everything once, without keys, and end.")] = False,
    serve: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Serve metrics for Prometheus instead, as in 127.0.0.1:9745; see docs/monitor.md."
        ),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(
            min=0.1, metavar="SECONDS", help="How often the picture is drawn (1), or lines without a terminal (60)."
        ),
    ] = None,
    folders: Annotated[
        list[Path] | None,
        typer.Option("--runs", metavar="FOLDER", help="Where runs are looked for (runs); may be given again."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option("--config", metavar="RECIPE", help="Take the section monitor of a recipe: prices, alerts."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set one key of that section, e.g. monitor.price_per_kwh=0.3."),
    ] = None,
) -> None:
    """Watch the GPUs of this machine, their health and the runs on it; ? shows the keys, q or Ctrl-C ends it.

    Without a terminal it writes lines. Runs that are recorded on this machine are found wherever they are.
    """
    from drumline.cli.screen import readers_may_leave
    from drumline.monitor.machine_watch import MachineWatch, this_machine

    if once and serve is not None:
        raise ConfigError("--once and --serve at the same time", "leave one of them out")
    if every is not None and (once or serve is not None):
        raise ConfigError("--every is about the live view and lines", "leave it out with --once and --serve")
    config = monitor_config(recipe, overrides or [])
    if once:  # who only looks alarms nobody
        config = config.model_copy(update={"alerts": config.alerts.model_copy(update={"enabled": False})})
    sources = this_machine(folders or [Path("runs")])
    with readers_may_leave(), MachineWatch(config, sources) as watch:
        if serve is not None:
            _serve(watch, serve)
        elif once:
            _show_once(watch)
        else:
            _watch(watch, every)


def monitor_config(recipe: str | None, overrides: list[str]) -> MonitorConfig:
    """The section monitor of a recipe with these overrides. Raises ConfigError for keys of other sections."""
    from drumline.config.load import load_config

    for override in overrides:
        if not override.strip().startswith("monitor."):
            raise ConfigError(f"--set {override}: only the section monitor counts here", "set a key monitor.NAME")
    return load_config(recipe, overrides).monitor


def _show_once(watch: MachineWatch) -> None:
    from drumline.cli.screen import table_console
    from drumline.hardware.nvml import INIT_LIMIT_S
    from drumline.monitor.scene import Look, ViewState
    from drumline.monitor.view import screen

    watch.wait(rates=True, limit_s=INIT_LIMIT_S)
    console = table_console()
    console.print(screen(watch.scene(), ViewState(), Look(console.width, None, console.options.ascii_only)))


def _watch(watch: MachineWatch, every_s: float | None) -> None:
    from drumline.cli.screen import is_screen, log_lines, table_console
    from drumline.hardware.nvml import INIT_LIMIT_S
    from drumline.monitor.keys import Keys
    from drumline.monitor.live import repeat, show
    from drumline.monitor.view import plain_lines

    if is_screen():
        watch.wait(limit_s=1.0)
        show(table_console(), Keys(sys.stdin), watch.scene, every_s or SCREEN_EVERY_S)
        return

    again = False

    def write(scene: Scene) -> None:
        nonlocal again
        for line in plain_lines(scene, again=again):
            print(line)
        sys.stdout.flush()
        again = True

    with log_lines():
        watch.wait(limit_s=INIT_LIMIT_S)
        repeat(write, Keys(), watch.scene, every_s or LINES_EVERY_S)


def _serve(watch: MachineWatch, address: str) -> None:
    from drumline.cli.screen import log_lines
    from drumline.monitor.exporter import parse_address, serve
    from drumline.monitor.keys import END, Keys
    from drumline.monitor.prometheus import Collector
    from drumline.monitor.view import absence

    collector = Collector(
        watch.sampler, runs=watch.runs, xids=watch.xid_counts, verdicts=lambda: watch.health().verdicts
    )
    with log_lines(), Keys() as keys, serve(collector, *parse_address(address)) as exporter:
        print(f"metrics are at {exporter.url}; Ctrl-C ends it", flush=True)
        if watch.sampler.latest is None:
            watch.wait()
        latest = watch.sampler.latest
        if latest is not None and not latest.gpus:
            print(absence(latest), flush=True)
        while END not in keys.read(3600.0):
            pass
