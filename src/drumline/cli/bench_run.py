"""How a benchmark is started and ended: a folder of its own, the workers, the result, its history and its page."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from drumline.cli.launch import finish
from drumline.cli.output import print_json, print_table

if TYPE_CHECKING:
    from drumline.config.schema import RunConfig
    from drumline.plan.record import Plan
    from drumline.rundir import RunDir


@dataclass(frozen=True)
class Request:
    """One set of workers that measures something."""

    config: RunConfig
    plan: Plan | None
    """None where there is no run to plan, only workers."""
    num_workers: int
    gpus: tuple[str, ...] | None
    """As LaunchSpec has them."""
    what: dict[str, Any]
    """request.json, as build.bench reads it."""


@dataclass(frozen=True)
class Wanted:
    """Where results go, and how they are shown."""

    out: Path
    baseline: dict[str, Any] | None
    """None: the history's newest result of the same settings on the same devices, if there is one."""
    as_json: bool

    @classmethod
    def of(cls, kind: str, out: Path, baseline: Path | None, as_json: bool) -> Wanted:
        """Read the baseline, before anything is measured. Raises ConfigError for one of another kind, or for none."""
        from drumline.track.bench import read_baseline

        return cls(out, None if baseline is None else read_baseline(baseline, kind), as_json)


def make_folder(out: Path, title: str) -> RunDir:
    """Make out/<title>-<date>-<time>, with a number behind it if that is taken."""
    from drumline.errors import RunDirExists
    from drumline.rundir import RunDir

    name, number = f"{title}{time.strftime('-%Y%m%d-%H%M%S')}", 1
    while True:
        try:
            return RunDir.create(out / (name if number == 1 else f"{name}-{number}"))
        except RunDirExists:
            number += 1


def run_workers(run: RunDir, request: Request, whole: Path | None = None) -> dict[str, Any]:
    """Start the workers in this folder, wait for them, and read their result; a failure ends the command.

    whole: the folder of the whole benchmark, where this is one part of it. An interrupted one is removed.
    """
    import shutil

    from drumline.config.load import dump_config
    from drumline.hardware.doctor import environment_facts
    from drumline.hardware.state import read_state, warnings_before, warnings_under_load
    from drumline.launcher.spec import LaunchSpec
    from drumline.launcher.start import start_workers
    from drumline.rundir import read_json, write_atomic, write_json
    from drumline.track.bench import RESULT

    write_atomic(run.config, dump_config(request.config))
    write_json(run.env, environment_facts(deep=False))
    if request.plan is not None:
        write_json(run.plan, request.plan.to_json())
    write_json(run.path / "request.json", request.what)
    before = read_state(request.gpus or ())
    target = "drumline.build.bench"
    spec = LaunchSpec(run.path, request.num_workers, "module", target, (str(run.path),), request.gpus)
    ended = start_workers(spec)
    if ended.interrupted is not None:
        shutil.rmtree(whole or run.path)
    finish(ended, run)
    result: dict[str, Any] = read_json(run.path / RESULT)
    after = result["machine"]["under_load"]
    result["machine"] = {"before": before.to_json(), **result["machine"]}
    result["warnings"] = [*warnings_before(before), *warnings_under_load(state_of(after))]
    return result


def state_of(values: dict[str, Any]) -> Any:
    """A machine's state back from JSON."""
    from drumline.hardware.state import GpuState, MachineState

    gpus = tuple(GpuState(**{**gpu, "throttled_by": tuple(gpu["throttled_by"])}) for gpu in values["gpus"])
    return MachineState(gpus, values["load"], values["cores"])


def tell_result(run: RunDir, result: dict[str, Any], config: RunConfig, wanted: Wanted) -> None:
    """Compare with the baseline, write result, page and a line of history, and print what came of it."""
    from drumline.rundir import write_json
    from drumline.track.bench import HISTORY, RESULT, compare_results, key_of, last_alike, remember
    from drumline.track.bench_page import sentence, table_of, write_bench_report

    kind = result["kind"]
    gpus = result["machine"]["before"]["gpus"]
    devices = [result["device"] or "cpu"] * (len(gpus) or result["world_size"])
    settings = {**config.model_dump(mode="json"), "request": result["request"]}
    result["key"] = key_of(kind, settings, devices)
    history = wanted.out / HISTORY
    baseline = wanted.baseline or last_alike(history, result["key"])
    result["comparison"] = [] if baseline is None else compare_results(baseline, result)
    write_json(run.path / RESULT, result)
    remember(history, result, run.path)
    text = run.config.read_text(encoding="utf-8")
    page = write_bench_report(run.path, result, text)
    if wanted.as_json:
        print_json({"directory": str(run.path), "page": str(page), "result": result})
        return
    header, rows = table_of(result)
    print_table(header, rows)
    typer.echo(sentence(result))
    for each in result["comparison"]:
        typer.echo(
            f"against the baseline: {each['name']} {100 * each['change']:+.1f}%: {each['verdict']} ({each['reason']})"
        )
    for warning in result["warnings"]:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"report: {page}")


def say(text: str) -> None:
    """Tell on standard error what is going on: standard output may be a JSON document."""
    print(text, file=sys.stderr, flush=True)


def numbers(text: str, option: str, least: int) -> list[int]:
    """The whole numbers of `1,2,4`, each once, in order. Raises ConfigError for anything else."""
    from drumline.errors import ConfigError

    parts: Sequence[str] = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= least for part in parts):
        raise ConfigError(f"{option} {text!r} is no list of numbers from {least} on", f"write it as {option} 1,2,4")
    return sorted({int(part) for part in parts})
