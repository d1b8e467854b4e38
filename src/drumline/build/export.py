"""What `drumline export` starts: writes the weights in a run's checkpoint as files that other programs read."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from drumline import __version__
from drumline.config.load import load_config
from drumline.config.model import HuggingFaceModel
from drumline.engine.checkpoint import read_checkpoint
from drumline.engine.weight_files import write_safetensors
from drumline.errors import ConfigError, DataError, DrumlineError
from drumline.manifest import newest_valid
from drumline.models.folder import copy_beside, write_pretrained
from drumline.rundir import RunDir, sync_directory

WEIGHTS = "model.safetensors"


def export(run: RunDir, out: Path, step: int | None) -> dict[str, Any]:
    """Make the folder `out` of the checkpoint of this step, or of the newest valid one; returns what was done.

    A Hugging Face folder where the run trained such a model, else one file with the names of the bare model. Where
    weights were averaged, the average is what is written. Raises ConfigError where `out` exists, DataError where there
    is no valid checkpoint.
    """
    if out.exists():
        raise ConfigError(f"{out} exists already", "give a folder that does not exist yet")
    path, skipped = (run.checkpoint_of(step), []) if step is not None else newest_valid(run)
    if path is None or not path.is_dir():
        known = "; ".join(f"{folder.name}: {problem}" for folder, problem in skipped)
        what = f"no checkpoint of update {step}" if step is not None else "no valid checkpoint"
        raise DataError(
            f"the run in {run.path} has {what}{f' ({known})' if known else ''}", f"see: drumline checkpoints {run.path}"
        )
    state = read_checkpoint(path)
    weights, averaged = final_weights(state["strategy"])
    update = int(state["progress"]["step"])
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        if not write_hugging_face(run, weights, temporary):
            write_safetensors(temporary / WEIGHTS, weights, {"drumline": __version__, "step": str(update)})
        for file in temporary.iterdir():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        sync_directory(temporary)
        temporary.rename(out)
        sync_directory(out.absolute().parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return {
        "files": sorted(file.name for file in out.iterdir()),
        "step": update,
        "averaged": averaged,
        "skipped": [f"{folder.name}: {problem}" for folder, problem in skipped],
        "not_found": [str(folder) for folder in folders_of(run) if not folder.is_dir()],
    }


def final_weights(strategy: Mapping[str, Any]) -> tuple[dict[str, Tensor], bool]:
    """What an evaluation would run on, by name, and whether it is an average; what is no tensor is left out."""
    weights = {name: value for name, value in strategy["model"].items() if isinstance(value, Tensor)}
    average = strategy["average"]
    if average is None or not average["averages"]:
        return weights, False
    # Of tied weights, which are one tensor here, the average has the first name only.
    by_place = {weights[name].data_ptr(): value for name, value in average["averages"].items() if weights[name].numel()}
    cast: dict[int, Tensor] = {}
    for name, value in weights.items():
        mean = average["averages"].get(name, by_place.get(value.data_ptr()) if value.numel() else None)
        if mean is not None:
            weights[name] = cast.setdefault(id(mean), mean.to(value.dtype))
    return weights, True


def write_hugging_face(run: RunDir, weights: Mapping[str, Tensor], out: Path) -> bool:
    """Write model, configuration and tokenizer, if the run trained a model of transformers'."""
    if not write_pretrained(weights, run.model, out):
        return False
    for folder in folders_of(run):
        copy_beside(folder, out)
    return True


def folders_of(run: RunDir) -> list[Path]:
    """The folders that tokenizer and model came from; a path in a recipe counts from where the run was started."""
    config = load_config(run.config)
    named = [getattr(config.data, "tokenizer", None)]
    if isinstance(config.model, HuggingFaceModel):
        named.append(config.model.path)
    return [Path(folder) for folder in named if folder is not None]


def answer(run: Path, out: Path, step: int | None) -> dict[str, Any]:
    """What was done, or {"problem": ..., "fix": ..., "code": ...}."""
    try:
        return export(RunDir(run), out, step)
    except DrumlineError as error:
        return {"problem": error.problem, "fix": error.fix, "code": error.code}
    except OSError as error:
        return {
            "problem": f"{out} cannot be written: {error}",
            "fix": "free space, or name another folder",
            "code": "data",
        }


if __name__ == "__main__":
    source, target, *wanted = sys.argv[1:]
    sys.stdout.write(f"\n{json.dumps(answer(Path(source), Path(target), int(wanted[0]) if wanted else None))}\n")
