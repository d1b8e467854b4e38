"""`drumline bench`: how fast a recipe trains and scales, what collectives and the loader can do, and who is faster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drumline.cli.bench_run import Request, Wanted, make_folder, numbers, run_workers, say, tell_result
from drumline.cli.options import Json, Overrides, Recipe

if TYPE_CHECKING:
    from drumline.config.schema import RunConfig
    from drumline.hardware.records import Hardware

WARM_UP = 10
"""Updates before the timed ones, unless others are asked for: the first ones compile, allocate and connect."""

Steps = Annotated[int, typer.Option(min=1, help="Updates that are timed.")]
WarmUp = Annotated[int, typer.Option(min=1, help="Updates before them that are left out.")]
Out = Annotated[Path, typer.Option(help="Folder that keeps benchmarks and their history.")]
Baseline = Annotated[
    Path | None,
    typer.Option(
        help="A benchmark's folder, result.json or history.jsonl to compare with; unless given, the newest one in the "
        "history with the same settings and devices."
    ),
]
BENCHES = Path("bench")


def register(app: typer.Typer) -> None:
    """Add the commands below `bench`."""
    from drumline.cli.bench_compare import compare
    from drumline.cli.bench_scaling import scaling

    about = "Measure training, communication, loading and scaling; compare with others."
    commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=about)
    for name, command in (("train", train), ("comm", comm), ("data", data), ("scaling", scaling), ("compare", compare)):
        commands.command(name)(command)
    app.add_typer(commands, name="bench")


def train(
    recipe: Recipe,
    overrides: Overrides = None,
    steps: Steps = 30,
    warm_up: WarmUp = WARM_UP,
    baseline: Baseline = None,
    out: Out = BENCHES,
    as_json: Json = False,
) -> None:
    """Time updates of a recipe: step, forward, backward, optimizer, memory, and where the time of a step goes."""
    from drumline.config.load import load_config
    from drumline.hardware.claims import Claims
    from drumline.hardware.inventory import detect
    from drumline.launcher.gpus import take_gpus
    from drumline.launcher.gpus import wanted as of_launch

    config = load_config(recipe, overrides or ())
    request = training(config, take_gpus(of_launch(config), detect(), Claims(f"bench train {recipe}")), steps, warm_up)
    wanted = Wanted.of("train", out, baseline, as_json)
    run = make_folder(out, f"train-{Path(recipe).stem}")
    say(f"bench: {warm_up} updates to warm up, {steps} timed, then a few watched, on {request.num_workers} process(es)")
    result = run_workers(run, request)
    result |= {"title": f"bench train {Path(recipe).stem}", "request": request.what}
    result["world_size"] = result["plan"]["world_size"]
    tell_result(run, result, config, wanted)


def training(config: RunConfig, hardware: Hardware, steps: int, warm_up: int) -> Request:
    """What times updates of this config; as long a run as it takes, whatever the config says of its length."""
    from drumline.plan.resolve import resolve

    plan = resolve(of_any_length(config), hardware)
    what = {"kind": "train", "steps": steps, "warm_up": warm_up}
    return Request(nameless(config), plan, plan.world_size, plan.gpus, what)


def of_any_length(config: RunConfig) -> RunConfig:
    """The config without its own length and schedule, which a benchmark has not and a short one might contradict."""
    schedule = type(config.train.schedule)(name="constant")
    length = config.train.model_copy(update={"max_steps": 1, "epochs": None, "schedule": schedule})
    return config.model_copy(update={"train": length})


def nameless(config: RunConfig) -> RunConfig:
    """The config without a name or folder of its own: a benchmark has another."""
    return config.model_copy(update={"name": None, "run_dir": None})


def comm(
    overrides: Overrides = None,
    largest: Annotated[
        int | None, typer.Option(min=1, metavar="MIB", help="Largest message; unless given 256 on GPUs, 16 on the CPU.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Timed samples of each collective and size.")] = 10,
    baseline: Baseline = None,
    out: Out = BENCHES,
    as_json: Json = False,
) -> None:
    """Time collectives between this machine's processes over message sizes, and advise a bucket size."""
    from drumline.config.load import load_config
    from drumline.errors import HardwareError
    from drumline.hardware.claims import Claims
    from drumline.hardware.inventory import detect
    from drumline.launcher.gpus import take_gpus
    from drumline.launcher.start import choose_workers
    from drumline.track.collectives import bucket_advice

    config = load_config(None, overrides or ())
    workers = choose_workers(config.hardware, take_gpus(config.hardware, detect(), Claims("bench comm")))
    if workers.num < 2:
        raise HardwareError(
            "one process has nobody to communicate with",
            "use a machine with several GPUs, or --set hardware.device=cpu --set hardware.num_processes=2",
        )
    largest = largest or (256 if workers.gpus else 16)
    sizes = message_sizes(largest, 2 if workers.gpus else 4)
    what = {"kind": "comm", "sizes": sizes, "samples": samples}
    request = Request(nameless(config), None, workers.num, workers.gpus or (), what)
    wanted = Wanted.of("comm", out, baseline, as_json)
    run = make_folder(out, "comm")
    say(f"bench: four collectives on {len(sizes)} message sizes, between {workers.num} processes")
    result = run_workers(run, request)
    result |= {"title": "bench comm", "request": what, "advice": bucket_advice(result["rows"])}
    if result["wrong_sums"]:
        result["warnings"].append(f"{result['wrong_sums']} sums of an all-reduce are wrong: see drumline gpus --test")
    tell_result(run, result, config, wanted)


def message_sizes(largest_mib: int, factor: int) -> list[int]:
    """Bytes from 4 KiB on, each `factor` times the one before, up to the largest."""
    sizes, size = [], 4096
    while size < largest_mib * 2**20:
        sizes.append(size)
        size *= factor
    return [*sizes, largest_mib * 2**20]


def data(
    recipe: Recipe,
    overrides: Overrides = None,
    workers: Annotated[str, typer.Option(help="Numbers of loader processes a rank.")] = "0,1,2,4",
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each of them reads.")] = 3.0,
    baseline: Baseline = None,
    out: Out = BENCHES,
    as_json: Json = False,
) -> None:
    """Read a recipe's training data without training, with each number of loader processes."""
    from drumline.config.load import load_config
    from drumline.hardware.inventory import detect

    config = load_config(recipe, overrides or ())
    hardware = detect()
    request = reading(config, hardware, numbers(workers, "--workers", 0), seconds)
    wanted = Wanted.of("data", out, baseline, as_json)
    run = make_folder(out, f"data-{Path(recipe).stem}")
    say(f"bench: reading for {seconds:g} s with {workers} loader processes, in {request.num_workers} process(es)")
    result = run_workers(run, request)
    result |= {"title": f"bench data {Path(recipe).stem}", "request": request.what, "device": "cpu"}
    tell_result(run, result, config, wanted)


def reading(config: RunConfig, hardware: Hardware, workers: list[int], seconds: float) -> Request:
    """What reads the data: a CPU process for each shard that the run would have, whatever device it trains on."""
    from drumline.config.parallel import AutoParallel
    from drumline.plan.resolve import resolve

    config = of_any_length(config)
    plan = resolve(config, hardware)
    settings: dict[str, Any] = {"device": "cpu", "gpus": None, "num_processes": plan.num_shards}
    train: dict[str, Any] = {
        "compile": "none",
        "precision": "fp32",
        "global_batch": plan.global_batch,
        "micro_batch": plan.micro_batch,
    }
    train |= {"batch_size_per_gpu": None, "gradient_accumulation_steps": None}
    for name in ("linear", "cuda_graphs", "checkpointing"):  # of the model, some of them for GPUs alone
        train[name] = type(config.train).model_fields[name].get_default()
    changed = nameless(config).model_copy(
        update={
            "hardware": config.hardware.model_copy(update=settings),
            "train": config.train.model_copy(update=train),
            "parallel": AutoParallel(timeout_s=config.parallel.timeout_s),
        }
    )
    what = {"kind": "data", "workers": workers, "seconds": seconds}
    return Request(changed, None, plan.num_shards, (), what)
