"""A run's model as predictions take it: out of a checkpoint, with the words and classes that it was trained with."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from drumline.build.features import pixel_settings
from drumline.build.rows import tokenizer_hub, tokenizer_name
from drumline.build.speaker import was_chat
from drumline.build.trained import Trained, folder_of, read_trained, whole_weights
from drumline.build.words import WRITERS
from drumline.config.inference import InferenceConfig
from drumline.config.model import CnnModel, DecoderModel, HuggingFaceModel
from drumline.data.tokenizers import load_tokenizer
from drumline.errors import ConfigError
from drumline.infer.classify import Labels
from drumline.infer.loading import LoadedModel
from drumline.infer.model_folder import dtype_of
from drumline.models.cnn import Cnn
from drumline.models.decoder import decoder_from_config
from drumline.models.folder import cast, model_of
from drumline.models.generation import FILE, ids_of
from drumline.parallel.keys import load_weights
from drumline.rundir import RunDir, read_json, read_lines

TRAINED_FOR = {
    "generate": WRITERS,
    "choose": WRITERS,
    "score": WRITERS,
    "classify": ("classification", "multi_label", "regression"),
    "token_classify": ("token_classification",),
    "embed": ("contrastive", *WRITERS),
}
"""By the kind of prediction, what a run may have learned for it."""


def load_run(run: RunDir, config: InferenceConfig, device: torch.device) -> tuple[LoadedModel, InferenceConfig]:
    """The model of a checkpoint on its device, and the settings, with the chat template that the run learned with.

    Raises ConfigError for a run of another task and for what only a folder can be asked, DataError where there is no
    valid checkpoint.
    """
    for setting, asked in (("split", config.split is not None), ("model.quantise", config.model.quantise != "none")):
        if asked:
            raise ConfigError(
                f"{setting} is set, and {run.path} is a run directory", "name the folder that drumline export makes"
            )
    trained = read_trained(run, config.model.step)
    kind = trained.config.task.kind
    if kind not in TRAINED_FOR[config.task.kind]:
        raise ConfigError(
            f"the run in {run.path} has learned {kind}, and the task is {config.task.kind}",
            f"give a run of {' or '.join(TRAINED_FOR[config.task.kind])}",
        )
    model = model_in(trained, config, device)
    settings = trained.config
    if isinstance(settings.model, CnnModel) or getattr(model, "main_input_name", "") == "pixel_values":
        labels = None if hasattr(model, "config") else Labels(class_names(run), "one")
        pixels = pixel_settings(settings, training=False)
        return LoadedModel(model, None, labels=labels, pixels=pixels), config
    tokenizer = load_tokenizer(tokenizer_name(settings), tokenizer_hub(settings))
    base = folder_of(trained)
    generation: dict[str, Any] = read_json(base / FILE) if base is not None and (base / FILE).is_file() else {}
    generation["eos_token_id"] = ids_of(generation.get("eos_token_id"))
    folder = getattr(tokenizer, "folder", None)
    return LoadedModel(model, tokenizer, folder, settings=generation), as_learned(config, trained)


def model_in(trained: Trained, config: InferenceConfig, device: torch.device) -> nn.Module:
    """The bare model with its weights, in the type to compute in. Raises ConfigError for kinds that are not built."""
    settings: Any = trained.config
    weights, dtype = whole_weights(trained), dtype_of(config, device)
    if isinstance(settings.model, HuggingFaceModel):
        found = model_of(cast(weights, dtype), trained.run.model)
        if found is None:
            raise ConfigError(f"{trained.run.path} does not say of which shape its model is", "give another run")
        model: Any = found.base_model if config.task.kind == "embed" else found
    elif isinstance(settings.model, DecoderModel):
        tokenizer = load_tokenizer(tokenizer_name(settings), tokenizer_hub(settings))
        model = decoder_from_config(settings.model, tokenizer.vocab_size, settings.data.context)
        load_weights(model, weights)
    elif isinstance(settings.model, CnnModel):
        if settings.task.kind != "classification":
            raise ConfigError("of a cnn only classification is built", "give a run of classification")
        shape = settings.model
        classes = len(class_names(trained.run))
        model = Cnn(settings.data.channels, classes, shape.width, shape.num_stages, shape.dropout)
        load_weights(model, weights)
    else:
        raise ConfigError(
            f"predictions by a model of kind {settings.model.kind} are not built",
            "use drumline.predict(model, rows, predict=...) with the model itself",
        )
    ready: nn.Module = model.to(device, dtype).eval().requires_grad_(False)
    return ready


def class_names(run: RunDir) -> tuple[str, ...]:
    """The names of the classes, as the run's events tell them. Raises ConfigError where they do not."""
    told = [line["classes"] for line in read_lines(run.events) if line.get("event") == "data" and "classes" in line]
    if not told:
        raise ConfigError(f"{run.events} does not name the run's classes", "give another run")
    return tuple(map(str, told[-1]))


def as_learned(config: InferenceConfig, trained: Trained) -> InferenceConfig:
    """With the chat template that the run learned with, or none where it read no chats, unless one is asked for."""
    task: Any = config.task
    prompt = getattr(task, "prompt", None)
    if prompt is None or prompt.template is not None or prompt.raw:
        return config
    learned = getattr(trained.config.data, "template", None)
    change = {"template": learned} if was_chat(trained.run) else {"raw": True}
    return config.model_copy(update={"task": task.model_copy(update={"prompt": prompt.model_copy(update=change)})})
