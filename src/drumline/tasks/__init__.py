"""Tasks: what is learned, how its loss is counted, what is measured and predicted.

A batch is a mapping with `labels`, whose other entries are handed to the model by name, or a pair (inputs, labels).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

from torch import nn

from drumline.errors import ConfigError
from drumline.models.decoder import Decoder
from drumline.models.huggingface import head_of, is_pretrained
from drumline.parallel.strategy import Batch, Task
from drumline.tasks.classification import Classification
from drumline.tasks.contrastive import Contrastive
from drumline.tasks.function import CountFunction, FunctionTask, count_samples
from drumline.tasks.huggingface import HuggingFaceLoss
from drumline.tasks.language_modelling import LanguageModelling
from drumline.tasks.multi_label import MultiLabel
from drumline.tasks.preference import Preference
from drumline.tasks.regression import Regression
from drumline.tasks.sequence_to_sequence import SequenceToSequence
from drumline.tasks.token_classification import TokenClassification

__all__ = [
    "Classification",
    "Contrastive",
    "FunctionTask",
    "HuggingFaceLoss",
    "LanguageModelling",
    "MultiLabel",
    "Preference",
    "Regression",
    "SequenceToSequence",
    "TokenClassification",
    "choose_task",
]

_ADVICE = (
    "give loss= with a task, such as drumline.tasks.Classification(10), or with a function of (model, batch) that "
    "returns the mean loss"
)


def choose_task(
    model: nn.Module, loss: Task | Callable[[nn.Module, Batch], Any] | None = None, count: CountFunction | None = None
) -> Task:
    """The task for a model: `loss` if it is a Task or a function, else what the model itself is made for.

    A function's loss on a Hugging Face model whose batches carry labels is weighed by the labels that the model's own
    loss is a mean of, else by samples; `count` overrides both. Raises ConfigError where neither model nor loss says
    what is learned, for a loss that cannot be called as loss(model, batch), and for a count without such a loss.
    """
    # torch.compile's wrapper keeps the model under this name.
    model = getattr(model, "_orig_mod", model)
    if isinstance(loss, type) and _is_task(loss):
        raise ConfigError(f"loss= is the class {loss.__name__}", f"give one of it: loss={loss.__name__}(...)")
    if loss is not None and not _is_task(loss):
        _check_callable(loss)
        return FunctionTask(cast("Callable[[nn.Module, Batch], Any]", loss), count or _count_of(model))
    if count is not None:
        raise ConfigError("count= goes with a function as loss=", "leave count= out; this loss counts its own units")
    if loss is not None:
        return cast("Task", loss)
    if isinstance(model, Decoder):
        return LanguageModelling(model.shape.vocab_size)
    if is_pretrained(model):
        return HuggingFaceLoss(model)
    raise ConfigError(f"what a {type(model).__name__} shall learn is not known", _ADVICE)


class _LabelsOrSamples:
    """Labels where a batch has some, samples elsewhere; a class, so that loader processes can have it."""

    def __init__(self, own: HuggingFaceLoss) -> None:
        self._own = own

    def __call__(self, batch: Batch) -> Any:
        has_labels = hasattr(batch, "keys") and "labels" in batch
        return self._own.counted(batch) if has_labels else count_samples(batch)


def _count_of(model: nn.Module) -> CountFunction | None:
    if is_pretrained(model) and head_of(model) is not None:
        return _LabelsOrSamples(HuggingFaceLoss(model))
    return None


def _is_task(loss: object) -> bool:
    return all(callable(getattr(loss, name, None)) for name in ("count", "check", "forward", "loss"))


def _check_callable(loss: object) -> None:
    name = type(loss).__name__
    if isinstance(loss, nn.Module):
        raise ConfigError(
            f"loss= is the module {name}, which knows neither the model nor the batch",
            "wrap it: loss=lambda model, batch: criterion(model(batch[0]), batch[1])",
        )
    if not callable(loss):
        raise ConfigError(f"loss= is a {name} and cannot be called", _ADVICE)
    try:
        inspect.signature(loss).bind(None, None)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"loss= cannot be called as loss(model, batch): {error}", _ADVICE) from error
