"""Hugging Face folders of a model that is at hand: its weights from one, and one made of its weights."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drumline.errors import DataError, MissingExtra
from drumline.models.huggingface import Embedder, is_pretrained
from drumline.parallel.keys import unwrapped
from drumline.rundir import write_json

CONFIG = "config.json"

BESIDE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "encoder.json",
    "vocab.bpe",
    "spiece.model",
    "generation_config.json",
    "preprocessor_config.json",
)
"""Files of a model's folder besides its weights and its shape that training does not change."""


def body_of(model: nn.Module) -> tuple[Any, str]:
    """The transformers model, and what its names begin with in the whole; (None, "") where there is none."""
    model = unwrapped(model)
    if is_pretrained(model):
        return model, ""
    return (model.body, "body.") if isinstance(model, Embedder) and is_pretrained(model.body) else (None, "")


def class_of(body: Any) -> Any:
    """Its class as transformers has it; fully_shard puts one of its own before it."""
    return next(base for base in type(body).__mro__ if not base.__module__.startswith("torch.distributed.fsdp"))


def read_pretrained(model: nn.Module, folder: Path) -> dict[str, Tensor] | None:
    """The weights in a Hugging Face folder by the model's names, as transformers itself reads them for its class.

    It knows what names were called in older files, and what a class without a head leaves out. None where the model is
    none of transformers', or the folder no such one. Raises DataError where a weight of the model is not in the folder,
    or one in the folder not in the model.
    """
    body, before = body_of(model)
    if body is None or not (folder / CONFIG).is_file():
        return None
    kind, dtype = class_of(body), next(p.dtype for p in body.parameters() if p.is_floating_point())
    try:
        with torch.random.fork_rng(devices=[]):
            found, info = kind.from_pretrained(
                folder, config=body.config, dtype=dtype, output_loading_info=True, local_files_only=True
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{folder} does not fit a {kind.__name__}: {error}", "give the folder of such a model"
        ) from error
    for names, problem in ((info["missing_keys"], "lacks"), (info["unexpected_keys"], "has besides")):
        if names:
            raise DataError(
                f"{folder} does not fit a {kind.__name__}: it {problem} {min(names)} and {len(names) - 1} more",
                "give the folder of such a model",
            )
    return {f"{before}{name}": value for name, value in found.state_dict().items()}


def keep_shape(model: nn.Module, folder: Path) -> None:
    """Write config.json of a transformers model into this folder, which is made; of other models nothing.

    With it a Hugging Face folder can be made of its weights when the model itself is gone.
    """
    body, _ = body_of(model)
    if body is None:
        return
    folder.mkdir(exist_ok=True)
    settings = body.config.to_dict() | {"architectures": [class_of(body).__name__]}
    if "use_cache" in settings:
        settings["use_cache"] = True  # off for training alone
    write_json(folder / CONFIG, settings)


def write_pretrained(weights: Mapping[str, Tensor], shape: Path, out: Path) -> bool:
    """Make `out`, a new folder, a Hugging Face folder of these weights, which are by the names of a whole model.

    shape: folder that `keep_shape` has written to. Returns False, and writes nothing, where there is none, or
    transformers has no class of that name. Raises MissingExtra without transformers.
    """
    if not (shape / CONFIG).is_file():
        return False
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra("transformers", "hf") from error
    config = transformers.AutoConfig.from_pretrained(shape, local_files_only=True, trust_remote_code=False)
    kind = getattr(transformers, (config.architectures or [""])[0], None)
    if kind is None:
        return False
    with torch.device("meta"):
        body = kind._from_config(config)
    if all(name.startswith("body.") for name in weights):
        weights = {name.removeprefix("body."): value for name, value in weights.items()}
    body.load_state_dict(weights, strict=True, assign=True)
    body.tie_weights()
    body.save_pretrained(out)
    return True


def copy_beside(folder: Path, out: Path) -> None:
    """Copy tokenizer and other files that belong to a model, those that the folder has and `out` has not."""
    for name in BESIDE:
        if (folder / name).is_file() and not (out / name).exists():
            shutil.copyfile(folder / name, out / name)
