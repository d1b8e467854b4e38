"""Where a Hugging Face model's files are: the folder that a recipe names, or the hub's cache on this machine."""

from __future__ import annotations

import json
from pathlib import Path

from drumline.config.model import HuggingFaceModel
from drumline.data.files import nearest
from drumline.data.hub import TOKENIZER_FILES, Hub, fetch, local_folder
from drumline.errors import ConfigError

SHAPE_FILES = ("config.json", "generation_config.json", "preprocessor_config.json", "README.md", "LICENSE*")
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")


def find_folder(model: HuggingFaceModel, *, weights: bool = True) -> Path:
    """The folder of a model: the one that `path` names, else one in the hub's cache, fetched where it must be.

    weights: whether the weights are wanted too, which they never are with `random_weights`. Raises ConfigError where
    there is no such model, DataError where the hub cannot be reached.
    """
    folder = local_folder(model.path)
    if folder is None:
        wanted = [*SHAPE_FILES, *TOKENIZER_FILES]
        if weights and not model.random_weights:
            wanted += WEIGHT_FILES
        if model.trust_remote_code:
            wanted.append("*.py")
        folder = fetch(model.path, "model.path", wanted, hub_of(model))
        if WEIGHT_FILES[0] in wanted and not any(folder.glob("*.safetensors")):
            raise ConfigError(
                f"model.path {model.path} has no safetensors on the hub, and weights as a pickle, which could run any "
                "code, are not fetched",
                "set model.revision to one that has them (the hub's own conversions are pull requests: refs/pr/1), or "
                "load it in transformers once, save_pretrained() it, and name that folder",
            )
    if not (folder / "config.json").is_file():
        near = "" if folder.is_dir() else f" ({nearest(folder)})"
        raise ConfigError(
            f"model.path {model.path} is no Hugging Face folder: it has no config.json",
            f"give the folder that holds config.json and the weights, or a name on the hub, as org/name{near}",
        )
    return folder


def refuse_code(model: HuggingFaceModel, folder: Path) -> None:
    """Raise ConfigError for a model that comes with Python code of its own, unless that is allowed."""
    if model.trust_remote_code:
        return
    try:
        shape = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        classes = shape.get("auto_map")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{folder / 'config.json'} is damaged: {error}", "fetch or copy it again") from error
    # A model that transformers has taken in since keeps its old code beside it, which is not needed.
    if classes and not is_known(shape.get("model_type")):
        names = ", ".join(sorted(map(str, classes.values())))
        raise ConfigError(
            f"model.path {model.path} comes with code of its own ({names}), and transformers has no such model",
            "read it, and if you trust it set model.trust_remote_code to true",
        )


def is_known(kind: str | None) -> bool:
    """Whether transformers has this kind of model."""
    from transformers import CONFIG_MAPPING

    return kind in CONFIG_MAPPING


def hub_of(model: HuggingFaceModel) -> Hub:
    """How a model's settings say to get at the hub."""
    return Hub(model.revision, model.cache_dir, model.token_variable)
