"""What each worker of `drumline eval` executes: `python -m drumline.build.evaluate DIRECTORY CHECKPOINT`."""

from __future__ import annotations

import sys
from pathlib import Path

from drumline.build.parts import build_trainer
from drumline.config.load import load_config
from drumline.launcher.world import detect_world
from drumline.rundir import RunDir, write_json
from drumline.track.logs import console_handler, log_to_file

RESULT = "evaluation.json"
"""Where rank 0 leaves the metrics, in the directory of the evaluation."""


def main(directory: Path, checkpoint: Path) -> None:
    """Evaluate a checkpoint by the config in `directory`, a prepared run directory; raises what it ends with.

    Weights, their average and the evaluation's own batch size are the checkpoint's, so that the numbers are those that
    the run itself would come to after that update.
    """
    run = RunDir(directory)
    config = load_config(run.config)
    rank = detect_world().rank
    undo = [log_to_file(run.log_of(rank), rank)]
    if rank == 0:
        undo.append(console_handler())
    try:
        with build_trainer(config, run) as trainer:
            trainer.load(checkpoint)
            metrics = trainer.evaluate()
            if rank == 0:
                write_json(run.path / RESULT, metrics)
    finally:
        for step in undo:
            step()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
