"""Which features a task reads, and how they become batches."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from torch import nn

from drumline.build.language import by_length, language_rows, preference_rows, window_of
from drumline.build.rows import Loaded
from drumline.config.data import ImageFolders
from drumline.config.schema import RunConfig
from drumline.data.features import (
    ColumnFeatures,
    Features,
    ImageFeatures,
    NumberFeatures,
    PairFeatures,
    Prepared,
    PreparedStream,
    ReadLabel,
    SourceTargetFeatures,
    TextFeatures,
    WordFeatures,
)
from drumline.data.images import Pixels, PixelSettings
from drumline.data.label_places import LabelPlaces
from drumline.data.labels import as_numbers
from drumline.data.length_order import ByLength
from drumline.data.packing import NO_LABEL
from drumline.data.padding import MULTIPLE, Pad
from drumline.data.source import Collate
from drumline.errors import ConfigError
from drumline.models.huggingface import is_pretrained, text_config

_LABELS_BY_TOKEN = ("preference", "token_classification", "sequence_to_sequence")


def prepare(config: RunConfig, loaded: Loaded, model: nn.Module) -> tuple[Any, Any | None, Collate | None]:
    """Training rows and held-out rows as tensors, and how they become a batch (None: torch's own way)."""
    if loaded.reads == "packed":
        return loaded.train, loaded.evaluation, None
    if loaded.form is not None and config.task.kind == "language_modelling":
        return language_rows(config, loaded, model, pad_id(loaded, model))
    if config.task.kind == "preference":
        held_out = loaded.evaluation
        return (
            by_length(config, preference_rows(config, loaded, loaded.train, "data.train")),
            None if held_out is None else preference_rows(config, loaded, held_out, "data.eval"),
            make_collate(config, loaded, model),
        )
    features = make_features(config, loaded, model, training=True)
    if getattr(config.data, "group_by_length", None):
        train: Any = Prepared(by_size(config, loaded), features, "data.train")
    else:
        train = prepared(loaded.train, features, "data.train")
    held_out = None
    if loaded.evaluation is not None:
        held_out = prepared(loaded.evaluation, make_features(config, loaded, model, training=False), "data.eval")
    return train, held_out, make_collate(config, loaded, model)


def by_size(config: RunConfig, loaded: Loaded) -> ByLength:
    """Training records in updates of similar size; a text's tokens are not counted for that. Raises ConfigError."""
    if loaded.reads != "text":
        raise ConfigError(
            f"data.group_by_length is true, and the task reads {loaded.reads}, no texts",
            "leave it out, or set it to false",
        )
    return ByLength(loaded.train, window_of(config))


def prepared(records: Any, features: Features, name: str) -> Prepared | PreparedStream:
    """Records with their features, read at any place or as they come."""
    return (Prepared if records.schema.num_rows is not None else PreparedStream)(records, features, name)


def make_features(config: RunConfig, loaded: Loaded, model: nn.Module, *, training: bool) -> Features:
    """What the task reads of a record; images are mirrored and moved in training only."""
    if loaded.reads == "columns":
        return ColumnFeatures()
    label = read_label(config, loaded)
    if loaded.reads == "numbers":
        assert label is not None
        return NumberFeatures(loaded.facts.columns, label)
    if loaded.reads == "image":
        return ImageFeatures(Pixels(pixel_settings(config, training=training)), label)
    return text_features(config, loaded, model, label)


def read_label(config: RunConfig, loaded: Loaded) -> ReadLabel | None:
    """How a row's label becomes a tensor; None where rows have none, or one for each word."""
    if config.task.kind == "regression":
        return as_numbers
    if loaded.classes is None or config.task.kind == "token_classification":
        return None
    return loaded.classes.many_hot if config.task.kind == "multi_label" else loaded.classes.one


def pixel_settings(config: RunConfig, *, training: bool) -> PixelSettings:
    """The data section's settings of images."""
    data: Any = config.data
    if not isinstance(data, ImageFolders):
        return PixelSettings(data.size, data.channels)
    still = PixelSettings(data.size, data.channels, data.mean, data.std)
    return replace(still, flip=data.flip, shift=data.shift) if training else still


def text_features(config: RunConfig, loaded: Loaded, model: nn.Module, label: ReadLabel | None) -> Features:
    """What a task on texts reads."""
    tokenizer, context, task = loaded.tokenizer, loaded.facts.context, config.task.kind
    assert tokenizer is not None and context is not None
    if task == "token_classification":
        assert loaded.classes is not None
        return WordFeatures(tokenizer, context, loaded.classes)
    if task == "sequence_to_sequence":
        return SourceTargetFeatures(tokenizer, context)
    if task == "contrastive":
        return PairFeatures(tokenizer, context)
    pair = "text_pair" in loaded.facts.columns
    type_ids = pair and "token_type_ids" in inspect.signature(model.forward).parameters
    return TextFeatures(tokenizer, context, label, pair=pair, type_ids=type_ids)


def make_collate(config: RunConfig, loaded: Loaded, model: nn.Module) -> Collate:
    """Padding by the names that differ in length; a model that looks for its padding id gets that one."""
    if loaded.tokenizer is None:
        return Pad({})
    pad_ids = {"input_ids": pad_id(loaded, model), "attention_mask": 0, "token_type_ids": 0}
    if config.task.kind in _LABELS_BY_TOKEN:
        pad_ids["labels"] = NO_LABEL
    pad = Pad(pad_ids, MULTIPLE, loaded.facts.context)
    return LabelPlaces(pad) if config.task.kind == "preference" else pad


def pad_id(loaded: Loaded, model: nn.Module) -> int:
    """The id that fills rows up: the model's own, where it has one, else the tokenizer's."""
    assert loaded.tokenizer is not None
    own = text_config(model).pad_token_id if is_pretrained(model) else None
    return loaded.tokenizer.pad_id if own is None else int(own)
