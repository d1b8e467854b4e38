"""What each rank of a run executes: `python -m drumline.worker RUN_DIR`."""

from __future__ import annotations

import sys
from pathlib import Path

from drumline.build import build_trainer
from drumline.config.load import load_config
from drumline.launcher.world import detect_world
from drumline.rundir import RunDir
from drumline.track.logs import console_handler, log_to_file


def main(run_dir: Path) -> None:
    """Train what the run directory's config says; raises what the run ends with."""
    run = RunDir(run_dir)
    rank = detect_world().rank
    undo = [log_to_file(run.log_of(rank), rank)]
    if rank == 0:
        undo.append(console_handler())
    try:
        with build_trainer(load_config(run.config), run) as trainer:
            trainer.fit()
    finally:
        for step in undo:
            step()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
