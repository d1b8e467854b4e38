"""`drumline gpus`: every GPU of this machine at a glance, as JSON, or put to the test."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drumline.cli.options import Json
from drumline.cli.output import print_json
from drumline.errors import ConfigError

if TYPE_CHECKING:
    from drumline.hardware.active_verdicts import TestResult
    from drumline.hardware.records import Snapshot
    from drumline.monitor.one_look import OneLook
    from drumline.monitor.scene import Scene


WATCH_EVERY_S = 2.0


def register(app: typer.Typer) -> None:
    """Add the command `gpus`."""
    app.command("gpus")(gpus)


def gpus(
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show them again and again, until q or Ctrl-C.")] = False,
    every: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="How often, with --watch (2).")
    ] = None,
    test: Annotated[
        bool, typer.Option("--test", help="Put them to work and compare what comes out; takes minutes.")
    ] = False,
) -> None:
    """Show every GPU of this machine: use, memory, power, health with the reason, and who is on it.

    CUDA_VISIBLE_DEVICES is not heeded. Ends with 1 if a GPU failed a test.
    """
    from drumline.cli.screen import readers_may_leave
    from drumline.monitor.one_look import look_once

    if watch and (as_json or test):
        raise ConfigError("--watch goes with neither --json nor --test", "leave one of them out")
    if every is not None and not watch:
        raise ConfigError("--every is about --watch", "give --watch as well, or leave it out")
    with readers_may_leave():
        if watch:
            _watch(every or WATCH_EVERY_S)
            return
        look = look_once()
        if test:
            _test(look, as_json)
        elif as_json:
            found = {"snapshot": look.snapshot, "verdicts": look.verdicts, "topology": look.topology}
            print_json({name: as_plain(value) for name, value in found.items()})
        else:
            _show(look.scene())


def as_plain(value: Any) -> Any:
    """Records, mappings and tuples as what JSON knows."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_plain(inner) for key, inner in value.items()}
    return [as_plain(inner) for inner in value] if isinstance(value, tuple | list) else value


def _show(scene: Scene) -> None:
    from drumline.cli.screen import table_console
    from drumline.monitor.scene import Look, ViewState
    from drumline.monitor.view import screen, warnings

    console = table_console()
    if not scene.snapshot.gpus:
        for line in warnings(scene):
            console.print(line, soft_wrap=True)
        return
    console.print(screen(scene, ViewState(), Look(console.width, None, console.options.ascii_only)))


def _watch(every_s: float) -> None:
    from drumline.cli.screen import is_screen, table_console
    from drumline.config.monitor import AlertsConfig, MonitorConfig
    from drumline.hardware.health import read_verdicts
    from drumline.hardware.nvml import INIT_LIMIT_S
    from drumline.monitor.keys import Keys
    from drumline.monitor.live import repeat, show
    from drumline.monitor.machine_watch import MachineWatch, Sources
    from drumline.monitor.scene import Look, ViewState
    from drumline.monitor.view import screen

    config = MonitorConfig(alerts=AlertsConfig(enabled=False))
    with MachineWatch(config, Sources(past=read_verdicts)) as watch:
        watch.wait(rates=True, limit_s=INIT_LIMIT_S)
        latest = watch.sampler.latest
        if latest is not None and not latest.gpus:
            _show(watch.scene())
        elif is_screen():
            show(table_console(), Keys(sys.stdin), watch.scene, every_s)
        else:
            console = table_console()
            look = Look(console.width, None, console.options.ascii_only)
            repeat(lambda scene: console.print(screen(scene, ViewState(), look), "\n"), Keys(), watch.scene, every_s)


def _test(look: OneLook, as_json: bool) -> None:
    from drumline.hardware.active_tests import run_tests

    snapshot = look.snapshot
    # CUDA can use a GPU with MIG on through its instances only.
    divided = {sample.gpu.parent for sample in snapshot.gpus}
    uuids = [sample.gpu.uuid for sample in snapshot.gpus if sample.gpu.uuid not in divided]
    if not uuids and not as_json:
        _show(look.scene())
        return
    results = run_tests(uuids, on_result=lambda result: _tell(snapshot, result)) if uuids else []
    if as_json:
        print_json(as_plain(results))
    else:
        _show_results(snapshot, results)
    if any(result.status == "fail" for result in results):
        raise typer.Exit(1)


def _tell(snapshot: Snapshot, result: TestResult) -> None:
    """Progress, a line a result, on standard error: the table comes when all is done."""
    typer.echo(f"{_subject(snapshot, result)} {result.name}: {result.status}", err=True)


def _show_results(snapshot: Snapshot, results: list[TestResult]) -> None:
    from drumline.cli.output import print_table

    rows = [
        [_subject(snapshot, result), result.name, result.status, _measured(result), result.message]
        for result in results
    ]
    print_table(["", "test", "result", "measured", ""], rows)
    for result in results:
        if result.status != "ok" and result.fix:
            typer.echo(f"{_subject(snapshot, result)} {result.name}: {result.fix}")


def _subject(snapshot: Snapshot, result: TestResult) -> str:
    from drumline.monitor.scene import labels

    names = labels(snapshot.gpus)
    return f"GPU {', '.join(names.get(uuid, uuid) for uuid in (result.uuid, *result.others))}"


def _measured(result: TestResult) -> str:
    if result.value is None:
        return ""
    expected = f", {result.expected:.4g} expected" if result.expected is not None else ""
    return f"{result.value:.4g} {result.unit}{expected}"
