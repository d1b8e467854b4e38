"""What a task takes from a batch and from a model, by one rule for all of them.

A batch is a mapping with `labels`, whose other entries are handed to the model by name, or a pair (inputs, labels), as
a TensorDataset gives it, whose first part is handed over as it is. Labels may be missing where nothing is learned:
then the pair is the inputs alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from drumline.errors import ConfigError, DataError
from drumline.parallel.strategy import Batch

LABELS = "labels"


def inputs_of(batch: Batch) -> Any:
    """What the model gets: a mapping without its labels, the first part of a pair, or a tensor as it is."""
    if isinstance(batch, Mapping):
        return {name: value for name, value in batch.items() if name != LABELS}
    return batch[0] if isinstance(batch, tuple | list) else batch


def call_model(model: nn.Module, batch: Batch) -> Any:
    """model(**inputs) for inputs with names, else model(inputs)."""
    inputs = inputs_of(batch)
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def has_labels(batch: Batch) -> bool:
    """Whether there is something to learn from."""
    if isinstance(batch, Mapping):
        return batch.get(LABELS) is not None
    return isinstance(batch, tuple | list) and len(batch) == 2


def labels_of(batch: Batch) -> Tensor:
    """The labels; raises DataError where there are none."""
    labels = None
    if has_labels(batch):
        labels = batch[LABELS] if isinstance(batch, Mapping) else batch[1]
    if not isinstance(labels, Tensor):
        if isinstance(batch, Mapping):
            found = f"has {', '.join(map(str, batch))}"
        elif isinstance(batch, tuple | list):
            found = f"is a {type(batch).__name__} of {len(batch)}"
        else:
            found = f"is a {type(batch).__name__}"
        raise DataError(
            f"a batch needs labels, and this one {found}",
            f"let the data set or its collate function give a mapping with '{LABELS}' or a pair (inputs, labels), or "
            "give your own loss=",
        )
    return labels


def scores_of(outputs: Any) -> Tensor:
    """A model's scores: the tensor that it returned, or its `.logits`; in float32, unless they are float64."""
    scores = outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", None)
    if not isinstance(scores, Tensor):
        raise ConfigError(
            f"the model returned a {type(outputs).__name__} without .logits",
            "let its forward return a tensor, or give loss= with a function of (model, batch)",
        )
    return in_full(scores)


def in_full(values: Tensor) -> Tensor:
    """In float32, unless they are float64: half precision is too coarse to add up in."""
    return values if values.dtype == torch.float64 else values.float()


def check_shape(scores: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ConfigError unless a model's scores have this shape."""
    if tuple(scores.shape) != shape:
        raise ConfigError(
            f"the model gave scores of shape {list(scores.shape)}, and the task needs {list(shape)}",
            "make the model's last layer as wide as there are classes, and the number of classes that of the data",
        )
