"""What each worker of `drumline infer` executes: `python -m drumline.build.predictor RUN_DIR`."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from drumline.build.trained_model import load_run
from drumline.config.infer_file import load_inference_config
from drumline.config.inference import GenerateTask, InferenceConfig
from drumline.config.kept import checkpoint_of
from drumline.engine.process import expandable_segments
from drumline.errors import ConfigError, DrumlineError, HardwareError, Interrupted
from drumline.infer.before_loading import check_named, check_question
from drumline.infer.ledger_folder import FACTS_LOCK, lock_file
from drumline.infer.loading import WORKER, devices_of, load_model_for, predictor_of
from drumline.infer.locks import Locks
from drumline.infer.records import Predictor
from drumline.infer.rows import prepare_rows
from drumline.infer.same_threads import SameThreads
from drumline.infer.stop_requests import ASKED, StopRequest
from drumline.infer.team import FOLLOW, Followers, Seat, Together, follow
from drumline.infer.work import WorkSettings, work
from drumline.launcher.independent_child import Start
from drumline.launcher.notices import Notice, noting
from drumline.launcher.world import detect_world
from drumline.manifest import read_manifest
from drumline.plan.replicas import check_split
from drumline.predictions import PredictionDir
from drumline.rundir import RunDir, read_json, write_json
from drumline.track.logs import console_handler, log_to_file

ALONE, AMONG_RANKS = "drumline.launcher.independent_child", "drumline.launcher.child"
"""The modules of our launchers that a worker may begin in; they show what it ends with."""
STOP_SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")

logger = logging.getLogger("drumline")


def main(directory: Path) -> None:
    """Answer rows until all of the run's have answers; raises what the worker ends with.

    Interrupted (3) when it was asked to stop, WorkerLost (4) where another process can go on, ConfigError and DataError
    (2) for what no worker can do.
    """
    place = PredictionDir(directory)
    config = load_inference_config(place.run.config, {})
    start = start_of(sys.orig_argv)
    number = detect_world().rank if start is None else start.number
    undo = [log_to_file(log_of(place, start), number)]
    if number == 0:
        undo.append(console_handler())
    try:
        with noting(STOP_SIGNALS) as notice, expandable_segments(config.hardware.expandable_segments):
            answer_rows(place, config, start, notice)
    finally:
        for step in undo:
            step()


def answer_rows(place: PredictionDir, config: InferenceConfig, start: Start | None, notice: Notice) -> None:
    """Load the model and work. The rows come first: what is wrong with them is said before a GPU is filled."""
    # Our launcher removes a request that was meant for an attempt before; one that is there concerns a new worker too.
    asked = StopRequest(place, lambda: notice.first is not None, heeds_old=start is not None)
    check_question(config)
    # One that takes another's place meets whatever has become of the files since, and the rows are kept.
    prepare_rows(place, config.rows, asked, compare=start is None or start.first)
    if asked():
        raise Interrupted(ASKED)
    check_named(config, read_json(place.rows_facts)["columns"])
    device = own_device(config, alone=start is not None)
    with team_of(place, config, device) as followers:
        predictor = predictor_here(with_agreed_step(place, config, asked), device)
        if followers is not None:
            predictor = Together(predictor, followers)
        logger.info("%s for %s on %s", config.model.path, config.task.kind, device)
        work(place, predictor, WorkSettings(config, device), stop=asked)


@contextmanager
def team_of(place: PredictionDir, config: InferenceConfig, device: torch.device) -> Iterator[Followers | None]:
    """Inside, the other processes of a tensor split are there; None: this process computes alone."""
    devices = devices_of(config, device)
    if config.split is None or config.split.kind == "layers" or len(devices) == 1:
        yield None
        return
    check_split(config)
    with closing(Followers([sys.executable, "-m", WORKER, str(place.path)], devices)) as followers:
        yield followers


def predictor_here(config: InferenceConfig, device: torch.device) -> Predictor:
    """The predictor of this process, leader or follower, as all workers of a run have it."""
    if device.type == "cuda":
        # A model split by layers has several; in a team each process has one, and nothing to do on the others'.
        for each in [device.index] if dist.is_initialized() else range(torch.cuda.device_count()):
            torch.cuda.set_per_process_memory_fraction(config.hardware.memory_fraction, each)
    if dist.is_initialized() and isinstance(config.task, GenerateTask):
        # A choice by time could be another one in each process.
        config = config.model_copy(update={"task": config.task.model_copy(update={"engine": "padded"})})
    predictor = make_predictor(config, device)
    return SameThreads(predictor) if device.type == "cpu" else predictor


def follow_leader(directory: Path, seat: Seat) -> None:
    """What a process does that another worker has started for its part of each layer."""
    for name in STOP_SIGNALS:  # the leader stops between two batches, and this process with it
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    config = load_inference_config(PredictionDir(directory).run.config, {})
    with expandable_segments(config.hardware.expandable_segments):
        follow(seat, lambda device: predictor_here(config, device))


def with_agreed_step(
    place: PredictionDir, config: InferenceConfig, stop: Callable[[], bool] = lambda: False
) -> InferenceConfig:
    """The settings, of a run directory with the checkpoint that the first worker found, which all load.

    A worker that comes later, or resumes, would else answer by another one where the run was trained on meanwhile.
    Raises DataError where there is no such checkpoint, or not any more, Interrupted where `stop` comes while another
    worker finds it.
    """
    run = RunDir(Path(config.model.path))
    if not run.config.is_file():
        return config
    if not place.checkpoint.is_file():
        locks = Locks(lock_file(place))
        try:
            with locks.held(FACTS_LOCK, stop) as held:
                if not held:
                    raise Interrupted(ASKED)
                if not place.checkpoint.is_file():
                    path, skipped = checkpoint_of(run, config.model.step)
                    for line in skipped:
                        logger.warning("passed over: %s", line)
                    write_json(place.checkpoint, {"step": read_manifest(path).step})
        finally:
            locks.close()
    step = int(read_json(place.checkpoint)["step"])
    return config.model_copy(update={"model": config.model.model_copy(update={"step": step})})


def make_predictor(config: InferenceConfig, device: torch.device) -> Predictor:
    """The predictor of a model in a folder, on the hub, or in a run's newest checkpoint or that of `model.step`."""
    run = RunDir(Path(config.model.path))
    if run.config.is_file():
        loaded, config = load_run(run, config, device)
    elif config.model.step is not None:
        raise ConfigError(f"{config.model.path} is no run directory, and model.step is set", "leave model.step out")
    else:
        loaded = load_model_for(config, device)
    return predictor_of(loaded, config, device)


def own_device(config: InferenceConfig, *, alone: bool) -> torch.device:
    """The GPU of this process, or the first of several that a split model has; the CPU where it sees none.

    alone: its launcher shows it no GPUs but its own. Else the local rank decides, as among torchrun's or srun's.
    """
    asked = config.hardware.device
    number = 0 if asked == "cpu" else torch.cuda.device_count()
    if number == 0:
        if asked == "cuda":
            raise HardwareError("hardware.device is cuda, and this process sees no GPU", "see drumline gpus")
        return torch.device("cpu")
    index = 0
    if not alone:
        world = detect_world()
        each = 1 if config.split is None else max(1, number // world.local_size)
        index = world.local_rank * each % number
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def start_of(arguments: list[str]) -> Start | None:
    """What the launcher of independent workers told this process; None where another one, or nobody, started it."""
    if ALONE not in arguments:
        return None
    return Start(**json.loads(arguments[arguments.index(ALONE) + 1]))


def log_of(place: PredictionDir, start: Start | None) -> Path:
    """Where this worker logs: beside its standard streams where they go to a file of its own."""
    if start is not None:
        return Path(start.error_file.removesuffix(".error.json") + ".log")
    return place.run.logs / f"worker_{socket.gethostname()}_{os.getpid()}.log"


def as_program(directory: Path) -> NoReturn:
    """Run as a process; a launcher of ours shows what it raises, without one it is said on standard error."""
    if FOLLOW in sys.argv:
        follow_leader(directory, Seat(**json.loads(sys.argv[sys.argv.index(FOLLOW) + 1])))
        sys.exit(0)
    if ALONE in sys.orig_argv or AMONG_RANKS in sys.orig_argv:
        main(directory)
        sys.exit(0)
    try:
        main(directory)
    except DrumlineError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_status)
    sys.exit(0)


if __name__ == "__main__":
    as_program(Path(sys.argv[1]))
