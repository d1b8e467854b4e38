"""A model that a program has made itself, as the tasks of prediction take it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from drumline.data.tokenizers import HuggingFaceTokenizer, Tokenizer, has_tokenizer, load_tokenizer
from drumline.errors import ConfigError
from drumline.infer.loading import LoadedModel
from drumline.models.generation import ids_of
from drumline.models.huggingface import is_pretrained

GivenTokenizer = str | Path | Tokenizer | Any
"""A folder or name, one of drumline's, or one of transformers'."""


def device_of(model: nn.Module) -> torch.device:
    """Where the model lies; of several devices the first parameter's."""
    first = next((each.device for each in (*model.parameters(), *model.buffers())), None)
    return first or torch.device("cpu")


@contextmanager
def in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Every part of the model that is in training mode is put back into it at the end."""
    training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


@contextmanager
def as_loaded(model: nn.Module, tokenizer: GivenTokenizer | None) -> Iterator[LoadedModel]:
    """The model with its words; without a tokenizer that of the folder that it was read from.

    Raises ConfigError where there is none.
    """
    folder = _folder_of(model)
    with TemporaryDirectory(prefix="drumline-tokenizer-") as temporary:
        save = getattr(tokenizer, "save_pretrained", None)
        if save is not None:  # one of transformers': read anew, as prediction encodes by itself
            save(temporary)
            folder = Path(temporary)
            used: Tokenizer | None = HuggingFaceTokenizer(folder)
        elif isinstance(tokenizer, str | Path):
            used = load_tokenizer(str(tokenizer))
            folder = Path(tokenizer) if Path(tokenizer).is_dir() else folder
        elif tokenizer is None:
            used = HuggingFaceTokenizer(folder) if folder is not None and has_tokenizer(folder) else None
        else:
            used = tokenizer
        if used is None:
            raise ConfigError(
                f"nothing is known of the words of this {type(model).__name__}",
                "give tokenizer=..., or predict=... for a model that reads no text",
            )
        settings = {"eos_token_id": ids_of(_end_of(model))}
        yield LoadedModel(model, used, folder, settings=settings)


def _folder_of(model: nn.Module) -> Path | None:
    """Where a transformers model was read from, if it is still there."""
    if not is_pretrained(model):
        return None
    name = str(getattr(model.config, "_name_or_path", "") or "")
    return Path(name) if name and Path(name).is_dir() else None


def _end_of(model: nn.Module) -> Any:
    """The ids that end an answer, of a transformers model."""
    for owner in (getattr(model, "generation_config", None), getattr(model, "config", None)):
        if getattr(owner, "eos_token_id", None) is not None:
            return owner.eos_token_id  # type: ignore[union-attr]
    return None
