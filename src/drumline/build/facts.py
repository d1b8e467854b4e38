"""What `drumline plan` and `drumline train` start: counts what a recipe's model takes, without making it."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from drumline.build.parts import build_parts
from drumline.config.load import load_config
from drumline.config.model import HuggingFaceModel
from drumline.config.schema import RunConfig
from drumline.data.source import as_source
from drumline.engine.facts import known, with_passes
from drumline.engine.learners import choose_tasks
from drumline.errors import DrumlineError
from drumline.launcher.processes import die_with_parent
from drumline.models.facts import reason


def facts_of(config: RunConfig) -> dict[str, Any]:
    """The model's facts at the config's precision (None while it has no shape) and the number of rows, as JSON.

    Raises what building the recipe raises.
    """
    if isinstance(config.model, HuggingFaceModel):
        # The shape alone: weights would be read, and have nowhere to go.
        config = config.model_copy(update={"model": config.model.model_copy(update={"random_weights": True})})
    built = build_parts(config, device="meta")
    options = built.options
    tasks = choose_tasks(built.model, options.get("loss"), options.get("count"))
    source = as_source(built.train, options.get("collate"))
    facts = known(built.model, config)
    if facts is not None:
        facts = with_passes(facts, built.model, tasks, source, config, config.train.precision)
    return {"facts": None if facts is None else facts.to_json(), "num_rows": source.rows_per_epoch}


def answer(config_file: Path) -> dict[str, Any]:
    """The facts, or {"error": why} whatever keeps the recipe from being built: the run itself says it in full."""
    try:
        return facts_of(load_config(config_file))
    except DrumlineError as error:
        return {"error": error.problem}
    except Exception as error:
        return {"error": reason(error)}


if __name__ == "__main__":
    die_with_parent(signal.SIGKILL, os.getppid())  # whoever asks may be killed
    sys.stdout.write(f"\n{json.dumps(answer(Path(sys.argv[1])))}\n")
