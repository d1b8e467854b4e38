"""A prediction's model on its device, and the predictor of its task around it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from drumline.config.inference import ChooseTask, ClassifyTask, EmbedTask, GenerateTask, InferenceConfig, ScoreTask
from drumline.data.images import PixelSettings
from drumline.data.templates import answer_ends
from drumline.data.tokenizers import Tokenizer
from drumline.errors import ConfigError
from drumline.infer.classify import Labels
from drumline.infer.model_folder import Places, head_for, load_folder, places_of, tokenizer_in
from drumline.infer.records import Predictor
from drumline.launcher.world import detect_world
from drumline.models.generation import FILE, ids_of
from drumline.models.huggingface import is_pretrained
from drumline.rundir import RunDir, read_json

WORKER = "drumline.build.predictor"
"""The program that `drumline infer` starts."""


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode on its device, with what it was trained with."""

    model: nn.Module
    tokenizer: Tokenizer | None = None
    """None: it reads no text."""
    folder: Path | None = None
    """Where its words, chat template and settings of generation lie; None: nowhere."""
    labels: Labels | None = None
    """Of a classifier; None: its configuration says."""
    pixels: PixelSettings | None = None
    """Of a model of images."""
    settings: dict[str, Any] = field(default_factory=dict)
    """As in a generation_config.json; eos_token_id is a list."""
    weights: Path | None = None
    """A folder with just these weights; None: they are split, packed, random, merged with an adapter's, or given."""


def make_predictor(config: InferenceConfig, device: torch.device) -> Predictor:
    """The predictor of a model in a folder or on the hub.

    Raises ConfigError and DataError for a model that is not there, is none for the task, or is a run's directory, which
    `drumline.build.predictor` loads.
    """
    if RunDir(Path(config.model.path)).config.is_file():
        raise ConfigError(
            f"model.path {config.model.path} is a run directory", "name the folder that drumline export makes of it"
        )
    if config.model.step is not None:
        raise ConfigError(f"{config.model.path} is no run directory, and model.step is set", "leave model.step out")
    return predictor_of(load_model_for(config, device), config, device)


def load_model_for(config: InferenceConfig, device: torch.device) -> LoadedModel:
    """The model of a folder or of the hub, for the task."""
    places = places_of(config.model)
    head = head_for(config.task.kind, places)
    if config.split is not None and places.adapter is not None:
        raise ConfigError(
            f"{config.model.path} is an adapter, and split is set", "merge it into its model (drumline export)"
        )
    if config.split is not None and config.split.kind == "layers":
        from drumline.infer.split import load_split

        model = load_split(places.base, config, devices_of(config, device))
    elif config.split is not None and len(devices_of(config, device)) > 1 and not dist.is_initialized():
        raise ConfigError(
            "split.kind tensor takes several processes, and here is one", "use the command drumline infer"
        )
    else:
        model = load_folder(config, places, head, device)
    if head == "image_classification":
        from drumline.infer.images import pixel_settings_of

        return LoadedModel(model, None, places.base, pixels=pixel_settings_of(places.base, model.config))
    tokenizer, folder = tokenizer_in(places)
    as_given = config.split is None and config.model.quantise == "none" and not config.model.random_weights
    weights = places.base if as_given and places.adapter is None else None
    return LoadedModel(model, tokenizer, folder, settings=generation_settings(places), weights=weights)


def devices_of(config: InferenceConfig, first: torch.device) -> list[torch.device]:
    """The devices of a split model: this one and those after it, as many as are asked for or visible.

    No more than this process's share, where it is one of several that see all GPUs of their machine. On the CPU a
    tensor split has as many processes as are asked for.
    """
    if first.type != "cuda":
        split = config.split
        if split is None or split.kind == "layers" or split.gpus == "auto":
            return [first]
        return [first] * split.gpus
    begin, end = first.index or 0, torch.cuda.device_count()
    if WORKER not in sys.orig_argv:  # a worker sees no GPUs but its own
        end = min(end, begin + max(1, end // detect_world().local_size))
    if config.split is not None and config.split.gpus != "auto":
        end = min(end, begin + config.split.gpus)
    return [torch.device("cuda", number) for number in range(begin, end)]


def generation_settings(places: Places) -> dict[str, Any]:
    """What the folders say of how the model writes; `eos_token_id` is a list."""
    found: dict[str, Any] = {}
    for folder in dict.fromkeys((places.base, places.adapter or places.base)):
        for name in ("config.json", FILE):
            if (folder / name).is_file():
                stated: dict[str, Any] = read_json(folder / name)
                wanted = stated if name == FILE else {k: stated[k] for k in ("eos_token_id",) if k in stated}
                found |= {key: value for key, value in wanted.items() if value is not None}
    return {**found, "eos_token_id": ids_of(found.get("eos_token_id"))}


def predictor_of(loaded: LoadedModel, config: InferenceConfig, device: torch.device) -> Predictor:
    """The predictor of the task around a model. Raises ConfigError where the model is none for it."""
    task = config.task
    if isinstance(task, ClassifyTask):
        return classifier_of(loaded, task, config, device)
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        raise ConfigError(f"the model {config.model.path} reads no text, and the task is {task.kind}", "set task.kind")
    if isinstance(task, GenerateTask | ChooseTask | ScoreTask):
        return writer_of(loaded, tokenizer, config, device)
    refuse_strange(loaded.model, config)
    if isinstance(task, EmbedTask):
        from drumline.infer.embed import EmbedPredictor, body_of, warn_of_pooling

        warn_of_pooling(task, loaded.folder)
        return EmbedPredictor(body_of(loaded.model), tokenizer, task, config.rows.text, device)
    from drumline.infer.token_classify import TokenClassifyPredictor

    return TokenClassifyPredictor(loaded.model, tokenizer, task, config.rows.text, device)


def classifier_of(loaded: LoadedModel, task: ClassifyTask, config: InferenceConfig, device: torch.device) -> Predictor:
    """A class a row, of a text or of an image."""
    from drumline.infer.classify import ClassifyPredictor, Inputs, TextClassifier, labels_of
    from drumline.infer.text_inputs import limit_of

    model: Any = loaded.model
    if loaded.labels is None:
        refuse_strange(model, config)
    labels = loaded.labels or labels_of(model.config, task.threshold)
    if loaded.pixels is not None:
        from drumline.infer.images import ImageClassifier

        rows = config.rows
        inputs: Inputs = ImageClassifier(
            model, loaded.pixels, rows.text, device, max_rows=config.batching.rows, roots=rows.image_roots
        )
    else:
        assert loaded.tokenizer is not None
        inputs = TextClassifier(
            model, loaded.tokenizer, columns_of(config), limit_of(model, task.context, task.too_long), device
        )
    return ClassifyPredictor(inputs, labels)


def refuse_strange(model: nn.Module, config: InferenceConfig) -> None:
    """Raise ConfigError for a model that is none of transformers', of whose outputs nothing is known."""
    if not is_pretrained(model):
        raise ConfigError(
            f"a {type(model).__name__} is no transformers model, and the task is {config.task.kind}",
            "say what is predicted: drumline.predict(model, rows, predict=...)",
        )


def columns_of(config: InferenceConfig) -> Sequence[str]:
    """The columns with a row's texts: one, or two."""
    rows = config.rows
    return (rows.text,) if rows.text_pair is None else (rows.text, rows.text_pair)


def writer_of(loaded: LoadedModel, tokenizer: Tokenizer, config: InferenceConfig, device: torch.device) -> Predictor:
    """The predictors of causal language models."""
    task, model = config.task, loaded.model
    if isinstance(task, ScoreTask):
        from drumline.infer.score import ScorePredictor

        return ScorePredictor(model, tokenizer, task, config.rows.text)
    from drumline.infer.prompts import PromptMaker

    assert isinstance(task, GenerateTask | ChooseTask)
    if isinstance(task, ChooseTask):
        from drumline.infer.choose import ChoosePredictor

        return ChoosePredictor(model, tokenizer, task, loaded.folder)
    from drumline.infer.generate import GeneratePredictor

    prompts = PromptMaker(task.prompt, tokenizer, loaded.folder)
    ends = answer_ends(loaded.settings.get("eos_token_id") or (), tokenizer, prompts.chat_template)
    return GeneratePredictor(model, tokenizer, task, prompts, ends, config.seed, loaded.weights)
