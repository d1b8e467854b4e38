"""`drumline infer`: a data set in, one answer a row out, on every device."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from drumline.cli.infer_options import InferOptions, with_options

if TYPE_CHECKING:
    from drumline.cli.prediction_progress import Display
    from drumline.config.inference import InferenceConfig
    from drumline.launcher.independent import Crew, Result, Watch
    from drumline.launcher.world import World
    from drumline.predictions import PredictionDir

WORKER = "drumline.build.predictor"
"""The module that answers rows; its argument is the run directory."""
SO_FAR = "drumline.infer.so_far"
SO_FAR_LIMIT_S = 3600.0
"""Most time that writing what is answered may take."""
MOST_ERRORS = 3
"""Kinds of errors that are shown at the end."""


def register(app: typer.Typer) -> None:
    """Add the command `infer`."""
    app.command("infer")(with_options(infer))


def infer(options: InferOptions) -> None:
    """Answer every row of a data set with a model, in order, on every device; the same command goes on after a stop.

    Each GPU has a worker that takes batches from one ledger, OUT.run. The file appears when all rows are answered; a
    row that cannot be answered has an error there. Under torchrun or srun each process becomes a worker.
    """
    from drumline.config.infer_file import load_inference_config
    from drumline.launcher.world import detect_world
    from drumline.predictions import PredictionDir

    if options.so_far is not None:
        write_so_far(_directory_of(options), options.so_far)
        return
    config = load_inference_config(options.config_file, options.values(), options.overrides or ())
    directory = PredictionDir(config.directory)
    if options.dry_run:
        print_choice(config)
        return
    world = detect_world()
    if world.source != "python":
        become_worker(config, directory, world)
    infer_in(directory, config)


def infer_in(directory: PredictionDir, config: InferenceConfig) -> None:
    """Answer what is left to answer in this directory; ends the command as the run ended."""
    from drumline.cli.prediction_directory import check_places, finished, take
    from drumline.cli.prediction_progress import Display
    from drumline.hardware.claims import Claims
    from drumline.hardware.doctor import environment_facts
    from drumline.hardware.inventory import detect
    from drumline.launcher.gpus import take_gpus, tell_left_out
    from drumline.launcher.independent import Crew, run_crew
    from drumline.rundir import write_json

    check_places(config)
    if finished(directory, config):
        print(f"{config.output.file} is there already, and whole: {_counts(directory)}")
        return
    claims = Claims(str(directory.path))  # held to the end of this process
    gpus = worker_gpus(config, tell_left_out(take_gpus(config.hardware, detect(), claims)))
    taken = take(directory, config)  # held to the end of this process
    if not taken.helps:
        write_json(directory.run.env, environment_facts(deep=False))
    crew = Crew(
        directory.path,
        WORKER,
        (str(directory.path),),
        gpus,
        config.max_restarts,
        hang_timeout_s=config.hang_timeout_s,
        machine=socket.gethostname() if taken.helps else "",
    )
    how = ", which another machine leads" if taken.helps else ", which goes on" if taken.goes_on else ""
    print(f"run: {directory.path}{how}; {workers_in_words(gpus)}")
    sys.stdout.flush()
    began = time.monotonic()
    display = Display(directory, [uuid for group in gpus for uuid in group])
    with display.shown():
        result = run_crew(crew, watch_of(directory, display))
    finish(crew, config, result, display, time.monotonic() - began)
    taken.release()


def watch_of(directory: PredictionDir, display: Display) -> Watch:
    """What the launcher of workers looks at meanwhile, in the run's directory."""
    from drumline.cli.prediction_directory import come_to, records_of
    from drumline.launcher.independent import Watch

    def records(pid: int) -> list[Path]:
        newest = display.newest
        # Who writes the final file, or waits for that, has closed its record.
        all_done = newest is not None and newest.rows_done == newest.rows_total
        return [] if all_done else records_of(directory, pid)

    return Watch(
        begun=lambda pid: bool(records_of(directory, pid)),
        records=records,
        progress=lambda: come_to(directory),
        tick=display.tick,
        tell=display.tell,
    )


def finish(crew: Crew, config: InferenceConfig, result: Result, display: Display, took_s: float) -> None:
    """Say and record how it ended. Raises LaunchError for a failure, typer.Exit for a stop."""
    from drumline.cli.prediction_progress import duration, number
    from drumline.predictions import PredictionDir

    directory = PredictionDir(crew.run_dir)
    status, failure, progress = result.exit_status, result.failure, display.newest
    if status == 0 and not config.output.file.exists():
        status = 1  # somebody has taken it away just now, or a worker that is no drumline's said so
    done = 0 if progress is None else progress.rows_done
    of = "" if progress is None or progress.rows_total is None else f" of {progress.rows_total:,}"
    facts = {"rows_done": done, "restarts": result.restarts, "took_s": round(took_s, 3)}
    if status == 0:
        new = done - (display.first.rows_done if display.first else 0)
        rate = f", {number(new / took_s)} rows/s" if new > 0 else ""
        message = f"{config.output.file}: {_counts(directory)}, in {duration(took_s)}{rate}"
        _record(crew, 0, message, facts)
        print("\n".join([*_commonest_errors(directory), message]))
        return
    if status == 3:
        why = f"interrupted by {result.interrupted.name}" if result.interrupted else "stopped, as the run was asked to"
        message = f"{why}; {done:,}{of} rows are answered, and the same command goes on"
        _record(crew, 3, message, facts)
        print(message, file=sys.stderr)
        raise typer.Exit(3)
    error = _error(crew, result, status)
    _record(crew, status, str(error), facts)
    if failure is not None and failure.traceback and status != 2:
        print(failure.traceback, file=sys.stderr)
    raise error


def _record(crew: Crew, status: int, message: str, facts: dict[str, Any]) -> None:
    """Write exit.json; where there is no room for it, the end itself is told all the same.

    Who helps another machine's launcher says only that all is done: how else the run ends is the other's to say.
    """
    from drumline.cli.prediction_directory import record_end
    from drumline.predictions import PredictionDir

    if crew.machine and status:
        return
    try:
        record_end(PredictionDir(crew.run_dir), status, message, facts)
    except OSError as error:
        print(f"warning: {crew.run.exit} could not be written: {error.strerror}", file=sys.stderr)


def _error(crew: Crew, result: Result, status: int) -> Exception:
    """What the run failed of, with where to read on."""
    from drumline.errors import LaunchError
    from drumline.launcher.failures import FIX_MARK

    failure = result.failure
    if failure is None:
        return LaunchError("the workers have ended, and the output is not there", f"see {crew.log_of(0)}")
    problem, _, fix = failure.message.partition(FIX_MARK)
    text = problem if status == 2 else f"no worker is left; the last one failed: {problem}"
    error = LaunchError(text, fix or f"see {crew.log_of(failure.rank or 0)}; the same command goes on with the rest")
    error.code, error.exit_status = failure.code, status
    return error


def worker_gpus(config: InferenceConfig, hardware: Any) -> tuple[tuple[str, ...], ...]:
    """The GPUs of each worker: one each, or several where the model is split; () for each on the CPU.

    Raises HardwareError where there are too few, and ConfigError where the size of a split model cannot be told.
    """
    from drumline.launcher.start import choose_workers
    from drumline.plan.replicas import check_split, gpus_needed, replicas, weight_bytes

    workers = choose_workers(config.hardware, hardware)
    split = config.split
    check_split(config)
    if not workers.gpus:
        return ((),) * workers.num
    if split is None:
        return tuple((uuid,) for uuid in workers.gpus)
    if split.device_map:
        count = max(split.device_map.values()) + 1
    elif split.gpus != "auto":
        count = split.gpus
    else:
        taken = [gpu for gpu in hardware.gpus if gpu.uuid in workers.gpus]
        half = all((gpu.compute_capability or (0, 0)) >= (8, 0) for gpu in taken)
        memory = min(gpu.memory_bytes or 0 for gpu in taken)
        count = gpus_needed(weight_bytes(Path(config.model.path), config.model, half=half), memory)
    return tuple(replicas(workers.gpus, count))


def workers_in_words(gpus: tuple[tuple[str, ...], ...]) -> str:
    """As '2 workers on the CPU', '4 workers of 2 GPUs each'."""
    many = f"{len(gpus)} worker{'s' if len(gpus) > 1 else ''}"
    each = len(gpus[0])
    if each == 0:
        return f"{many} on the CPU"
    return f"{many}, one a GPU" if each == 1 else f"{many} of {each} GPUs each"


def become_worker(config: InferenceConfig, directory: PredictionDir, world: World) -> NoReturn:
    """Make the directory, or find it, and go on in this process as one of the run's workers."""
    from drumline.cli.prediction_directory import check_places, finished, join
    from drumline.hardware.inventory import detect

    check_places(config)
    if finished(directory, config):
        print(f"{config.output.file} is there already, and whole")
        raise typer.Exit(0)
    groups = worker_gpus(config, detect())
    join(directory, config)
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(gpus_of_rank(groups, world))}
    # Among the GPUs that it sees then it is the first process, and the only one.
    environ |= dict.fromkeys({"LOCAL_RANK", "SLURM_LOCALID"} & environ.keys(), "0")
    os.execve(sys.executable, [sys.executable, "-P", "-m", WORKER, str(directory.path)], environ)


def gpus_of_rank(groups: tuple[tuple[str, ...], ...], world: World) -> tuple[str, ...]:
    """Pure: the GPUs of this process among those of its machine; () on the CPU.

    A process that sees no more than one replica's GPUs was given its own. Raises HardwareError for one too many.
    """
    from drumline.errors import HardwareError

    if not groups[0] or len(groups) == 1:
        return groups[0]
    if world.local_rank >= len(groups):
        raise HardwareError(
            f"{world.local_size} processes were started on this machine, whose GPUs make {len(groups)} workers",
            f"start {len(groups)} processes a machine",
        )
    return groups[world.local_rank]


def print_choice(config: InferenceConfig) -> None:
    """Print all settings, and which workers there would be."""
    from drumline.config.infer_file import dump_inference_config
    from drumline.hardware.inventory import detect
    from drumline.launcher.gpus import take_gpus, tell_left_out

    typer.echo(dump_inference_config(config), nl=False)
    gpus = worker_gpus(config, tell_left_out(take_gpus(config.hardware, detect())))
    typer.echo(f"# {workers_in_words(gpus)}; ledger: {config.directory}")


def write_so_far(directory: PredictionDir, file: Path) -> None:
    """Write the rows that are answered by now, in order, into another file, in a process of its own."""
    from drumline.errors import ConfigError, DataError
    from drumline.hardware.torch_child import ask_child

    if not directory.run.config.is_file():
        raise ConfigError(f"there is no prediction run in {directory.path}", "give the --out of one that has begun")
    arguments = ["-P", "-m", SO_FAR, str(directory.path), str(file)]
    answer = ask_child(arguments, SO_FAR_LIMIT_S, {**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    if "error" in answer:
        raise DataError(f"nothing was written: {answer['error']}", "see whether the installation is sound")
    if "problem" in answer:
        kind = ConfigError if answer["code"] == ConfigError.code else DataError
        raise kind(answer["problem"], answer["fix"])
    typer.echo(f"{file}: {answer['rows']:,} rows{'' if answer['whole'] else ' so far'}")


def _directory_of(options: InferOptions) -> PredictionDir:
    """The directory of the run that is asked for; --out says enough."""
    from drumline.config.infer_file import load_inference_config
    from drumline.predictions import PredictionDir

    alone = options.config_file is None and options.out is not None
    unknown = {"model": {"path": "-"}, "rows": {"files": ["-"]}} if alone else {}
    values = {**unknown, **options.values()}
    return PredictionDir(load_inference_config(options.config_file, values, options.overrides or ()).directory)


def _commonest_errors(directory: PredictionDir) -> list[str]:
    """The errors that most rows have, a line each."""
    from drumline.rundir import read_json

    errors = read_json(directory.summary).get("errors", {}) if directory.summary.is_file() else {}
    most = sorted(errors.items(), key=lambda each: -each[1])[:MOST_ERRORS]
    return [f"  {count:,} row{'s' if count > 1 else ''} failed: {text}" for text, count in most]


def _counts(directory: PredictionDir) -> str:
    """As '1,000 rows, 5 of them failed'."""
    from drumline.rundir import read_json

    summary = read_json(directory.summary) if directory.summary.is_file() else {}
    if not summary:
        return "done"
    failed = summary.get("num_failed", 0)
    return f"{summary['num_rows']:,} rows" + (f", {failed:,} of them failed" if failed else "")
