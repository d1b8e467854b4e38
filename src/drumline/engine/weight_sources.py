"""What files and folders hold weights, in which of the forms that people have, and what else is in them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from drumline.engine.checkpoint import STATE, read_checkpoint
from drumline.engine.weight_files import INDEX, read_file
from drumline.errors import DataError
from drumline.manifest import MANIFEST, newest_valid
from drumline.models.folder import CONFIG
from drumline.rundir import RunDir

logger = logging.getLogger("drumline")

MODEL = ("model_state_dict", "state_dict", "model", "net")
OPTIMIZER = ("optimizer_state_dict", "optimizer", "optimizer_states")
"""Under which of them people keep it; the last is Lightning's, a list."""
LIGHTNING = "pytorch-lightning_version"

WEIGHTS = ("model.safetensors", f"model.safetensors{INDEX}", "pytorch_model.bin", f"pytorch_model.bin{INDEX}")
"""Files that Hugging Face and accelerate write; the first that a folder has is read."""
OPTIMIZER_FILES = ("optimizer.bin", "optimizer.pt")
"""Of accelerate, and of transformers' Trainer."""
SUFFIXES = frozenset({".safetensors", ".pt", ".pth", ".bin", ".ckpt"})
NO_WEIGHTS = ("optimizer", "scheduler", "scaler", "sampler", "random_states", "rng_state", "training_args")
"""What names of such files begin with that hold something else."""

REFUSED = {
    "adapter_config.json": (
        "holds an adapter (LoRA), not a model",
        "name it in model.adapter.initial, to go on training it; or merge it into its model and save that",
    ),
    "zero_to_fp32.py": (
        "is a checkpoint of DeepSpeed",
        "run the zero_to_fp32.py in it, and give the file that it makes",
    ),
    ".metadata": (
        "is a sharded checkpoint of another program, whose list of parts is a pickle that could run any code",
        "if you trust it: python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER weights.pt",
    ),
}
"""By a file that gives it away: what a folder is, and what to do."""


@dataclass(frozen=True)
class Foreign:
    """What was found; tensors are on the CPU."""

    model: Mapping[str, Any]
    """Weights and buffers, by whatever names they were saved under."""
    optimizer: Mapping[str, Any] | None
    """As torch's optimizers give it; None where there is none, or more than one."""
    epoch: int | None
    source: str
    """drumline, huggingface, accelerate, lightning, checkpoint (weights and more in a file), or weights."""
    base: Mapping[str, str] | None = None
    """What tells of the model that an adapter of ours, which is all that was saved, belongs to."""


def is_ours(path: Path) -> bool:
    """Whether this is a checkpoint folder of ours, or what is left of one."""
    return (path / MANIFEST).is_file() or (path / STATE).is_file()


def newest_of_run(path: Path) -> Path:
    """Of a run directory its newest valid checkpoint, any other path itself. Raises DataError where there is none."""
    run = RunDir(path)
    if not (run.config.is_file() and run.checkpoints.is_dir()):
        return path
    newest, skipped = newest_valid(run)
    for folder, problem in skipped:
        logger.warning("%s is passed over: %s", folder, problem)
    if newest is None:
        raise DataError(f"the run in {path} has no valid checkpoint", "name another run, or a file of weights")
    return newest


def read_weights(path: Path, *, contents: bool = True) -> Foreign:
    """What a file or folder holds: of ours, or in one of the forms that torch, Hugging Face and others write.

    contents: of ours, compare checksums too. Raises DataError, which says why and what to do, for everything else.
    """
    if is_ours(path):
        return read_ours(path, contents=contents)
    if path.is_dir():
        return read_folder(path)
    if not path.exists():
        raise DataError(f"there is no file or folder {path}", "give the path of one that holds weights")
    return sort_out(read_file(path), path)


def read_ours(path: Path, *, contents: bool) -> Foreign:
    """A checkpoint of ours: the weights as they were trained, not their average."""
    state = read_checkpoint(path, contents=contents)
    learners = list(state["strategy"]["learners"].values())
    optimizer = learners[0]["optimizer"] if len(learners) == 1 else None
    return Foreign(state["strategy"]["model"], optimizer, state["progress"]["epoch"], "drumline", state.get("base"))


def read_folder(path: Path) -> Foreign:
    """A folder with weights and, in accelerate's and in those of transformers' Trainer, the optimizer."""
    for name, (what, fix) in REFUSED.items():
        if (path / name).exists():
            raise DataError(f"{path} {what}", fix)
    file = weights_in(path)
    found = sort_out(read_file(file), file)
    beside = next((path / name for name in OPTIMIZER_FILES if (path / name).is_file()), None)
    if beside is not None:
        found = replace(found, optimizer=as_optimizer(read_file(beside)))
    if (path / CONFIG).is_file():
        return replace(found, source="huggingface")
    return found if beside is None else replace(found, source="accelerate")


def weights_in(folder: Path) -> Path:
    """The one file of weights in a folder. Raises DataError where there is none, or where several could be meant."""
    files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and is_weights(file.name))
    known = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    more = [file for file in files if file.stem in ("model_1", "pytorch_model_1")]
    if known is not None and not more:
        return known
    last = folder / "last.ckpt"
    if last in files:
        return last
    if len(files) == 1:
        return files[0]
    if not files:
        raise DataError(
            f"{folder} is no complete checkpoint, and holds no file of weights", "give the path of one that does"
        )
    names = ", ".join(file.name for file in files[:4]) + (", ..." if len(files) > 4 else "")
    raise DataError(f"{folder} holds several files of weights: {names}", "give the path of one of them")


def is_weights(name: str) -> bool:
    """Whether a file's name is none of those that hold optimizers, random states and the like."""
    return not name.startswith(NO_WEIGHTS)


def sort_out(content: Any, path: Path) -> Foreign:
    """Find weights, optimizer and epoch in what a file holds."""
    if is_state_dict(content):
        return Foreign(content, None, None, "weights")
    if not isinstance(content, Mapping):
        raise DataError(
            f"{path} holds a {type(content).__name__}, not weights by name", "save a state_dict: model.state_dict()"
        )
    keys = [key for key in MODEL if is_state_dict(content.get(key))]
    if len(keys) != 1:
        found = f"both {keys[0]} and {keys[1]}" if keys else ", ".join(map(str, list(content)[:6])) or "nothing"
        raise DataError(
            f"{path} holds {found}, which leaves open what the weights are"
            if keys
            else f"{path} holds {found}, and weights under none of {', '.join(MODEL)}",
            "save the weights alone: torch.save(model.state_dict(), path)",
        )
    optimizer = next((content[key] for key in OPTIMIZER if key in content), None)
    if isinstance(optimizer, list):
        optimizer = optimizer[0] if len(optimizer) == 1 else None
    epoch = content.get("epoch")
    return Foreign(
        content[keys[0]],
        as_optimizer(optimizer),
        epoch if isinstance(epoch, int) else None,
        "lightning" if LIGHTNING in content else "checkpoint",
    )


def is_state_dict(value: Any) -> bool:
    """Whether these are tensors by name; modules may put other things under names of their own choice."""
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(
            isinstance(name, str) and (isinstance(each, Tensor) or name.endswith("_extra_state"))
            for name, each in value.items()
        )
    )


def as_optimizer(value: Any) -> Mapping[str, Any] | None:
    """An optimizer's state_dict, by numbers of parameters; None for anything else."""
    if not isinstance(value, Mapping) or not isinstance(value.get("state"), Mapping):
        return None
    groups = value.get("param_groups")
    by_number = all(isinstance(number, int) for number in value["state"])
    is_list = isinstance(groups, list) and all(isinstance(group, dict) and "params" in group for group in groups)
    return value if by_number and is_list else None
