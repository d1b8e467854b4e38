"""What `drumline export` starts: writes the weights in a run's checkpoint as files that other programs read."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from drumline import __version__
from drumline.build.card import write_card
from drumline.build.trained import Trained, folder_of, read_trained, whole_weights
from drumline.build.words import learned_ends, write_words
from drumline.config.kept import Asked
from drumline.config.model import HuggingFaceModel
from drumline.engine.weight_files import write_safetensors
from drumline.errors import ConfigError, DrumlineError
from drumline.launcher.processes import die_with_parent
from drumline.models.folder import cast, copy_files, write_pretrained
from drumline.models.generation import write_generation
from drumline.rundir import RunDir, remove_unfinished, sync_directory

WEIGHTS = "model.safetensors"
OTHER_FILES = ("preprocessor_config.json", "LICENSE*")
"""Of the model that training began with, what training does not change."""


def export(run: RunDir, out: Path, step: Asked, *, adapter: bool = False, weights: str | None = None) -> dict[str, Any]:
    """Make the folder `out` of a checkpoint of the run, see `checkpoint_of`; returns what was done.

    A Hugging Face folder where the run trained such a model, else one file with the names of the bare model. Where
    weights were averaged, the average is what is written; an adapter is merged into its model, or written alone, in
    peft's format. weights: float32 or bfloat16; None: as they were trained. Raises ConfigError where `out` exists,
    DataError where there is no valid checkpoint.
    """
    if out.exists():
        raise ConfigError(f"{out} exists already", "give a folder that does not exist yet")
    trained = read_trained(run, step)
    if adapter and trained.adapter is None:
        raise ConfigError(f"the run in {run.path} has trained no adapter", "leave --adapter out")
    dtype = None if weights is None else getattr(torch, weights)
    write = write_adapter_folder if adapter else write_folder
    missing = put_whole(out, lambda folder: write(trained, folder, dtype))
    return {
        "files": sorted(str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()),
        "step": trained.step,
        "averaged": trained.averaged,
        "merged": trained.adapter is not None and not adapter,
        "skipped": trained.skipped,
        "not_found": missing,
    }


def put_whole(out: Path, write: Callable[[Path], list[str]]) -> list[str]:
    """Let a folder be written beside its place, and put it there when all is on the disk; what `write` returns."""
    remove_unfinished(out)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        missing = write(temporary)
        for file in temporary.rglob("*"):
            if file.is_file():
                with file.open("rb") as stream:
                    os.fsync(stream.fileno())
        sync_directory(temporary)
        temporary.rename(out)
        sync_directory(out.absolute().parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return missing


def write_folder(trained: Trained, out: Path, dtype: torch.dtype | None) -> list[str]:
    """Write model, configuration, words and card, or of a model that is none of transformers' the weights alone.

    Returns the places of folders that are not there any more, so that nothing was copied from them.
    """
    weights = whole_weights(trained)
    if not write_pretrained(weights, trained.run.model, out, dtype):
        if dtype is not None:
            weights = cast(weights, dtype)
        write_safetensors(out / WEIGHTS, weights, {"drumline": __version__, "step": str(trained.step)})
        return []
    missing, base = write_words(trained, out), folder_of(trained)
    if base is not None:
        copy_files(base, out, OTHER_FILES)
    ends, pad = learned_ends(trained.config, out)
    write_generation(out, base, ends, pad)
    write_card(trained, base, out, adapter=False)
    return missing


def write_adapter_folder(trained: Trained, out: Path, dtype: torch.dtype | None) -> list[str]:
    """Write the adapter alone, with the words that it was trained with, and a card; returns as `write_folder` does."""
    from drumline.models.adapter_files import write_adapter

    model, weights = trained.config.model, trained.weights
    assert isinstance(model, HuggingFaceModel)
    if trained.base is None:
        raise ConfigError(
            "the adapter was trained beside random weights, which are nowhere else", "leave --adapter out"
        )
    base = {**trained.base, "path": base_name(model)}
    write_adapter(weights if dtype is None else cast(weights, dtype), model, base, out)
    missing = write_words(trained, out)
    write_card(trained, folder_of(trained), out, adapter=True)
    return missing


def base_name(model: HuggingFaceModel) -> str:
    """What an adapter calls the model that it belongs to: its name on the hub, or the whole path of its folder."""
    from drumline.data.hub import local_folder

    folder = local_folder(model.path)
    return model.path if folder is None else str(folder.resolve())


def answer(
    run: Path, out: Path, step: Asked = None, *, adapter: bool = False, weights: str | None = None
) -> dict[str, Any]:
    """What was done, or {"problem": ..., "fix": ..., "code": ...}."""
    try:
        return export(RunDir(run), out, step, adapter=adapter, weights=weights)
    except DrumlineError as error:
        return {"problem": error.problem, "fix": error.fix, "code": error.code}
    except OSError as error:
        return {
            "problem": f"{out} cannot be written: {error}",
            "fix": "free space, or name another folder",
            "code": "data",
        }


if __name__ == "__main__":
    die_with_parent(signal.SIGKILL, os.getppid())  # whoever asks may be killed
    source, target, wishes = sys.argv[1:]
    sys.stdout.write(f"\n{json.dumps(answer(Path(source), Path(target), **json.loads(wishes)))}\n")
