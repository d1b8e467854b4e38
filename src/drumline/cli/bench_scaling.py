"""`drumline bench scaling`: bench train at each number of processes, with one global batch and with one a process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drumline.cli.bench_run import Wanted, make_folder, numbers, run_workers, say, tell_result
from drumline.cli.options import Json, Overrides, Recipe

if TYPE_CHECKING:
    from drumline.config.schema import RunConfig
    from drumline.hardware.records import Hardware


def scaling(
    recipe: Recipe,
    overrides: Overrides = None,
    processes: Annotated[str, typer.Option(help="Numbers of processes: of GPUs, or on the CPU.")] = "1,2",
    steps: Annotated[int, typer.Option(min=1, help="Updates that are timed in each run.")] = 30,
    baseline: Annotated[Path | None, typer.Option(help="As for bench train.")] = None,
    out: Annotated[Path, typer.Option(help="Folder that keeps benchmarks and their history.")] = Path("bench"),
    as_json: Json = False,
) -> dict[str, Any]:
    """Time a recipe at several numbers of processes: speed-up and efficiency, strong and weak.

    Strong: the recipe's global batch, whatever the number. Weak: the batch that a process has of it at the largest
    number, for each. The micro-batch is the same everywhere.
    """
    from drumline.cli.bench import WARM_UP, training
    from drumline.config.load import dump_config, load_config
    from drumline.hardware.claims import Claims
    from drumline.hardware.inventory import detect
    from drumline.launcher.gpus import take_gpus
    from drumline.rundir import RunDir, write_atomic
    from drumline.track.bench import efficiencies

    config = load_config(recipe, overrides or ())
    wanted = Wanted.of("scaling", out, baseline, as_json)
    counts = numbers(processes, "--processes", 1)
    hardware = take_gpus(config.hardware, detect(), Claims(f"bench scaling {recipe}"))
    runs = configs(config, hardware, counts)
    folder = make_folder(out, f"scaling-{Path(recipe).stem}")
    rows: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for mode, count, each in runs:
        say(f"bench: {mode} scaling, {count} process(es)")
        part = RunDir.create(folder.path / f"{mode}_{count}")
        result = run_workers(part, training(each, hardware, steps, WARM_UP), folder.path)
        results.append(result)
        rows.append(row_of(mode, count, result))
    # At the largest number both kinds are one run.
    most = max(counts)
    rows += [{**row, "mode": "weak"} for row in rows if (row["mode"], row["processes"]) == ("strong", most)]
    write_atomic(folder.config, dump_config(config))
    last = results[-1]
    whole = {
        "kind": "scaling",
        "title": f"bench scaling {Path(recipe).stem}",
        "request": {"kind": "scaling", "processes": counts, "steps": steps},
        "rows": efficiencies(sorted(rows, key=lambda row: (row["mode"], row["processes"]))),
        "world_size": most,
        **{name: last[name] for name in ("unit", "device", "versions", "machine")},
        "warnings": list(dict.fromkeys(warning for result in results for warning in result["warnings"])),
    }
    whole["message"] = sentence(whole["rows"])
    tell_result(folder, whole, config, wanted)
    return whole


def configs(config: RunConfig, hardware: Hardware, processes: list[int]) -> list[tuple[str, int, RunConfig]]:
    """Mode, processes and config of each run, the largest number last. Raises HardwareError for too few GPUs."""
    from drumline.cli.bench import of_any_length
    from drumline.plan.resolve import resolve

    most = max(processes)
    plan = resolve(of_any_length(with_processes(config, hardware, most)), hardware)
    share = -(-plan.global_batch // most)
    found = []
    for mode in ("weak", "strong"):
        for count in processes:
            if (mode, count) == ("weak", most):
                continue
            batch = {
                "global_batch": share * count if mode == "weak" else plan.global_batch,
                "micro_batch": plan.micro_batch,
                "batch_size_per_gpu": None,
                "gradient_accumulation_steps": None,
            }
            sized = config.model_copy(update={"train": config.train.model_copy(update=batch)})
            found.append((mode, count, with_processes(sized, hardware, count)))
    return found


def with_processes(config: RunConfig, hardware: Hardware, count: int) -> RunConfig:
    """The config on so many of the machine's GPUs, or in so many CPU processes or replicas."""
    from drumline.errors import HardwareError
    from drumline.launcher.start import choose_workers

    gpus = choose_workers(config.hardware, hardware).gpus
    if gpus and count > len(gpus):
        raise HardwareError(f"{count} processes were asked for, there are {len(gpus)} GPUs", "ask for fewer")
    update: dict[str, Any] = {}
    if gpus:
        update["hardware"] = config.hardware.model_copy(update={"gpus": list(gpus[:count]), "count": None})
    elif config.parallel.kind == "data_parallel":
        update["parallel"] = config.parallel.model_copy(update={"replicas": count})
    else:
        update["hardware"] = config.hardware.model_copy(update={"num_processes": count})
    return config.model_copy(update=update)


def row_of(mode: str, count: int, result: dict[str, Any]) -> dict[str, Any]:
    """What one run gives the table."""
    slowest = min(result["breakdown"], key=lambda each: each["exposed_s"], default=None)
    return {
        "mode": mode,
        "processes": count,
        "global_batch": result["plan"]["global_batch"],
        "units_per_s": result["units_per_s"],
        "samples_per_s": result["samples_per_s"],
        "step_s": result["step_s"],
        "mfu": result["mfu"],
        "breakdown": slowest,
        "memory": result["memory"],
    }


def sentence(rows: list[dict[str, Any]]) -> str:
    """The efficiencies at the largest number of processes."""
    most = max(row["processes"] for row in rows)
    parts = [f"{100 * row['efficiency']:.1f}% {row['mode']}" for row in rows if row["processes"] == most]
    return f"efficiency at {most} process(es): {', '.join(parts)}"
