"""What each rank of a run executes: `python -m drumline.worker RUN_DIR`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

from drumline.build.parts import build_trainer
from drumline.build.parts import logger as build_logger
from drumline.config.load import load_config
from drumline.launcher.world import detect_world
from drumline.rundir import RunDir
from drumline.track.logs import console_handler, log_to_file


def main(run_dir: Path) -> None:
    """Train what the run directory's config says; raises what the run ends with."""
    run = RunDir(run_dir)
    config = load_config(run.config)
    rank = detect_world().rank
    undo = [log_to_file(run.log_of(rank), rank)]
    if rank == 0:
        undo.append(console_handler())
        if config.track.console:
            undo.append(show_data())
    try:
        with build_trainer(config, run) as trainer:
            trainer.fit()
    finally:
        for step in undo:
            step()


def show_data() -> Callable[[], None]:
    """Show what the build says of the data on standard output, before the plan; returns what undoes it."""
    handler = logging.StreamHandler(sys.stdout)
    handler.addFilter(lambda record: record.levelno == logging.INFO)
    build_logger.addHandler(handler)
    return lambda: build_logger.removeHandler(handler)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
