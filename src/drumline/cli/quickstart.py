"""`drumline quickstart`: the first minutes with a machine: is it in order, does it train, how fast, what next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from drumline.config.schema import RunConfig
    from drumline.hardware.records import Hardware

RECIPE = "quickstart"
SMALL = (
    "data.train=['recipes:moby_dick/chapter_1.txt']",
    "data.eval=['recipes:moby_dick/chapter_126.txt']",
    "model.num_layers=2",
    "model.width=64",
)
"""The recipe's small part: seconds on two CPU cores."""
OF_A_GPU = ("model.num_layers=12", "model.num_heads=12", "model.width=768", "data.context=1024")
"""What a GPU is measured with: GPT-2's shape. With less it would wait for its own host."""
BATCH_OF_A_DEVICE = {True: 8, False: 4}
"""By whether it is a GPU."""
MESSAGE_BYTES = {True: 64 * 2**20, False: 4 * 2**20}
BENCHES = Path("bench")
NEXT = """\
Next:
  drumline quickstart --check        is every device in order, and how much faster are all of them than one
  drumline quickstart --epochs 10    train for some seconds, on every device
  drumline quickstart --benchmark    step time, samples/s and scaling
  drumline quickstart --interactive  write a recipe of your own
  drumline train quickstart          train the whole recipe, as planned above"""


def register(app: typer.Typer) -> None:
    """Add the command `quickstart`."""
    app.command("quickstart")(quickstart)


def quickstart(
    check: Annotated[
        bool, typer.Option("--check", help="Check ranks, all-reduce, parameters and speed, a line each; 1 on a FAIL.")
    ] = False,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Train a small part of recipe quickstart so long: one chapter, two layers, width 64."),
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Ask at most five questions, and write a recipe.")
    ] = False,
    benchmark: Annotated[
        bool, typer.Option("--benchmark", help="Measure step time, samples/s and scaling from one device to all.")
    ] = False,
) -> None:
    """Begin with drumline on this machine; without an option: what there is, what would run, and what to do next.

    Runs are kept in runs/, measurements in bench/. On a machine without GPU two processes of the CPU take part.
    """
    from drumline.errors import ConfigError

    if sum((check, epochs is not None, interactive, benchmark)) > 1:
        raise ConfigError("these options are commands of their own", "give one of them at a time")
    if check:
        _check()
    elif epochs is not None:
        _train(epochs)
    elif interactive:
        from drumline.cli.quickstart_questions import ask_for_recipe

        ask_for_recipe()
    elif benchmark:
        _benchmark()
    else:
        _tell()


def _tell() -> None:
    from drumline.cli.plan import plan_run, print_plan
    from drumline.config.load import load_config
    from drumline.hardware.inventory import detect

    hardware = detect()
    for gpu in hardware.gpus:
        typer.echo(f"GPU {gpu.index}: {gpu.name}")
    if not hardware.gpus:
        typer.echo(f"no GPU is visible ({hardware.gpu_source}); {hardware.host.cpu_cores} CPU cores")
    typer.echo(f"recipe {RECIPE} would run here as:")
    print_plan(plan_run(load_config(RECIPE), counts=False))
    typer.echo(NEXT)


def _train(epochs: int) -> None:
    from drumline.cli.train import directory_of, train_in
    from drumline.config.load import load_config
    from drumline.rundir import RunDir, read_lines

    # Warm-up of the whole recipe is longer than this run may be.
    length = ("train.max_steps=null", f"train.epochs={epochs}", "train.schedule.warmup_steps=2")
    config = load_config(RECIPE, (*SMALL, *length))
    path = directory_of(config, RECIPE)
    train_in(path, config)
    losses = [record["loss"] for record in read_lines(RunDir(path).metrics) if record.get("kind") == "eval"]
    typer.echo(f"evaluation loss {losses[0]:.4f} before, {losses[-1]:.4f} after {epochs} epoch(s)")
    typer.echo(f"the run lies in {path}; drumline train quickstart trains the whole recipe")


def measured_settings(hardware: Hardware) -> tuple[int, tuple[str, ...]]:
    """How many devices take part in a measurement, and the settings of the recipe that is measured on them."""
    from drumline.config.load import load_config
    from drumline.launcher.start import choose_workers

    workers = choose_workers(load_config(RECIPE).hardware, hardware)
    on_gpus = bool(workers.gpus)
    batch = f"train.global_batch={BATCH_OF_A_DEVICE[on_gpus] * workers.num}"
    return workers.num, (*(OF_A_GPU if on_gpus else SMALL), batch)


def counts_up_to(num: int) -> list[int]:
    """Powers of two below a number of devices, and that number."""
    return [*(2**power for power in range(num.bit_length()) if 2**power < num), num]


def _benchmark() -> None:
    from drumline.cli.bench_scaling import scaling
    from drumline.config.load import load_config
    from drumline.hardware.inventory import detect
    from drumline.launcher.gpus import take_gpus

    num, settings = measured_settings(take_gpus(load_config(RECIPE).hardware, detect()))
    counts = ",".join(map(str, counts_up_to(num)))
    whole = scaling(RECIPE, list(settings), processes=counts, steps=8, out=BENCHES)
    for row in (row for row in whole["rows"] if row["mode"] == "weak"):
        step_ms, rate = 1000 * row["step_s"]["median"], row["samples_per_s"]
        typer.echo(f"{row['processes']} device(s): {step_ms:.1f} ms an update, {rate:,.1f} samples/s")


def _check() -> None:
    from drumline.cli.bench_run import make_folder
    from drumline.config.load import load_config
    from drumline.errors import LaunchError
    from drumline.hardware.claims import Claims
    from drumline.hardware.inventory import detect
    from drumline.launcher.gpus import take_gpus
    from drumline.launcher.start import choose_workers
    from drumline.track.soundness import verdicts

    hardware = take_gpus(load_config(RECIPE).hardware, detect(), Claims("quickstart --check"))
    num, settings = measured_settings(hardware)
    # Under ddp every rank has all parameters, which are compared.
    config = load_config(RECIPE, (*settings, f"parallel.kind={'ddp' if num > 1 else 'single'}"))
    run = make_folder(BENCHES, f"check-{RECIPE}")
    try:
        together, alone = _measure(run.path, config, hardware, num)
    except LaunchError as error:
        typer.echo(f"FAIL  start       {error.problem}")
        typer.echo(f"      fix: {error.fix}")
        raise typer.Exit(1) from error
    found = verdicts(together, alone, choose_workers(config.hardware, hardware).gpus, hardware.gpu_source)
    for each in found:
        typer.echo(f"{'ok' if each.is_ok else 'FAIL':<4}  {each.name:<10}  {each.message}")
    if not all(each.is_ok for each in found):
        raise typer.Exit(1)


def _measure(path: Path, config: RunConfig, hardware: Hardware, num: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """All devices together, and one of them alone with the share that it has in that."""
    from dataclasses import replace

    from drumline.cli.bench import training
    from drumline.cli.bench_run import run_workers, say
    from drumline.cli.bench_scaling import configs
    from drumline.rundir import RunDir

    message = {"bytes": MESSAGE_BYTES[bool(hardware.gpus)], "samples": 3}
    results: dict[int, dict[str, Any]] = {}
    wanted = configs(config, hardware, sorted({1, num}))
    by_count = {count: each for mode, count, each in wanted if mode == "weak" or count == num}
    for count, each in by_count.items():
        say(f"check: {count} process(es)")
        request = training(each, hardware, 8, 3)
        request = replace(request, what={**request.what, **message, "kind": "check"})
        results[count] = run_workers(RunDir.create(path / f"of_{count}"), request, path)
    return results[num], results[1]
