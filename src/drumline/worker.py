"""What each rank of a run executes: `python -m drumline.worker RUN_DIR`.

Started by our launcher it finds the config in the run directory. As `drumline train` under torchrun or srun it has the
config in its environment, and the directory is made when all ranks have met.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import yaml

from drumline.build.parts import build_joined, build_trainer
from drumline.build.parts import logger as build_logger
from drumline.config.load import config_from_mapping, load_config
from drumline.config.schema import RunConfig
from drumline.errors import DrumlineError
from drumline.launcher.spec import JOINED
from drumline.launcher.world import detect_world
from drumline.rundir import RunDir
from drumline.track.logs import console_handler, log_to_file


def main(run_dir: Path) -> None:
    """Train what the run directory's config says; raises what the run ends with."""
    run = RunDir(run_dir)
    config = load_config(run.config)
    rank = detect_world().rank
    with ExitStack() as undo:
        undo.callback(log_to_file(run.log_of(rank), rank))
        show(config, rank, undo)
        with build_trainer(config, run) as trainer:
            trainer.fit()


def join(run_dir: Path, config: RunConfig) -> None:
    """Train as one process of a world; rank 0's directory is the run's. Raises what the run ends with."""
    rank = detect_world().rank
    with ExitStack() as undo:
        show(config, rank, undo)
        with build_joined(config.model_copy(update={"run_dir": run_dir})) as trainer:
            run = RunDir(trainer.run_dir)
            undo.callback(log_to_file(run.log_of(rank), rank))
            if rank == 0:
                sys.stdout.write(f"run: {run.path}\n")
            trainer.fit()


def show(config: RunConfig, rank: int, undo: ExitStack) -> None:
    """Let rank 0's log, and what the build says of the data, be seen."""
    if rank == 0:
        undo.callback(console_handler())
        if config.track.console:
            undo.callback(show_data())


def show_data() -> Callable[[], None]:
    """Show what the build says of the data on standard output, before the plan; returns what undoes it."""
    handler = logging.StreamHandler(sys.stdout)
    handler.addFilter(lambda record: record.levelno == logging.INFO)
    build_logger.addHandler(handler)
    return lambda: build_logger.removeHandler(handler)


if __name__ == "__main__":
    joined = os.environ.pop(JOINED, None)
    if joined is None:
        main(Path(sys.argv[1]))
    else:
        try:
            join(Path(sys.argv[1]), config_from_mapping(yaml.safe_load(joined), JOINED))
        except DrumlineError as error:  # as the command itself would say it
            sys.stderr.write(f"error: {error}\n")
            sys.exit(error.exit_status)
