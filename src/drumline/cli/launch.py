"""`drumline launch`: a script on every device."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drumline.errors import ConfigError

if TYPE_CHECKING:
    from drumline.launcher.failures import Failure
    from drumline.launcher.start import Result
    from drumline.rundir import RunDir

_KEYS = (
    "hardware.device",
    "hardware.gpus",
    "hardware.count",
    "hardware.exclude",
    "hardware.min_free_memory",
    "hardware.max_utilization",
    "hardware.sick",
    "hardware.taken",
    "hardware.num_processes",
    "faults.max_restarts",
    "faults.restart_on",
    "faults.lost_gpu",
    "faults.sick_gpu",
    "faults.stop_signals",
    "faults.stop_grace_s",
)


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    # Without interspersed options everything behind SCRIPT is the script's.
    settings = {"ignore_unknown_options": False, "allow_interspersed_args": False}
    app.command("launch", context_settings=settings)(launch)


def launch(
    script: Annotated[Path, typer.Argument(help="Python script; it runs once a worker, as torchrun would run it.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Go to the script untouched.")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help=f"One of {', '.join(_KEYS)}; may be given again."),
    ] = None,
) -> None:
    """Start a script in one process a visible GPU; on a machine without GPU in one, or in as many as you say."""
    from drumline.config.load import load_config
    from drumline.hardware.claims import Claims
    from drumline.hardware.inventory import detect
    from drumline.launcher.gpus import take_gpus, tell_left_out
    from drumline.launcher.restarts import Policy, of_spec, run_with_restarts
    from drumline.launcher.spec import LaunchSpec
    from drumline.launcher.start import choose_workers, launch_directory

    config = load_config(None, _checked(overrides or []))
    if config.faults.sick_gpu == "at_once":
        raise ConfigError(
            "--set faults.sick_gpu=at_once: only the run itself can save and end",
            "set it in the script's RunConfig; at_restart and ignore count here",
        )
    if not script.exists():
        raise ConfigError(f"there is no script {script}", "give the path of a Python file")
    claims = Claims(str(script.absolute()))  # held to the end of this process
    workers = choose_workers(config.hardware, tell_left_out(take_gpus(config.hardware, detect(), claims)))
    run = launch_directory(script.stem)
    gpus = workers.gpus if workers.gpus or config.hardware.device == "cpu" else None
    spec = LaunchSpec(run.path, workers.num, "script", str(script), tuple(arguments or []), gpus).heeding(config.faults)
    finish(run_with_restarts(of_spec(spec), Policy.of(config, unless_said=0)), run)


def _checked(overrides: list[str]) -> list[str]:
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key not in _KEYS:
            raise ConfigError(
                f"--set {override}: launch only decides which workers there are, and when they are started again",
                f"set one of {', '.join(_KEYS)} here, and {key} in the script",
            )
    return overrides


def finish(result: Result, run: RunDir) -> None:
    """End the command as the launch ended, the first failing rank's message last on screen.

    Raises that failure as LaunchError, and typer.Exit after an interruption.
    """
    failure = result.failure
    if failure is None:
        if result.stopped is not None:
            print(f"{result.stopped}; the run is saved, and the same command goes on with it", file=sys.stderr)
        elif result.interrupted is not None:
            print(f"interrupted by {result.interrupted.name}; all workers have ended", file=sys.stderr)
        if result.stopped is not None or result.interrupted is not None:
            raise typer.Exit(result.exit_status)
        return
    if failure.traceback:
        print(failure.traceback, file=sys.stderr)
    raise failure.to_error(log_of(failure, run))


def log_of(failure: Failure, run: RunDir) -> Path:
    """Where to read on about a failure."""
    return run.logs / "agent.log" if failure.rank is None else run.log_of(failure.rank)
