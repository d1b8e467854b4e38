"""The task of learning from preferences, and the model's own start beside it."""

from __future__ import annotations

from torch import nn

from drumline.config.model import HuggingFaceModel
from drumline.config.schema import RunConfig
from drumline.config.task import PreferenceTask
from drumline.errors import ConfigError
from drumline.models.causal_head import choose_chunked
from drumline.models.huggingface import text_config
from drumline.models.reference import add_reference
from drumline.models.token_losses import Tail
from drumline.tasks.preference import Preference


def preference_for(config: RunConfig, task: PreferenceTask, model: nn.Module) -> Preference:
    """The task, for a model that is as it was loaded; where it needs one it gets a frozen copy of itself.

    Raises ConfigError for models of other kinds, and for weights that would come after that copy.
    """
    if not isinstance(config.model, HuggingFaceModel):
        raise ConfigError(
            f"task.kind preference needs a language model of Hugging Face's, and model.kind is {config.model.kind}",
            "set model.kind to huggingface",
        )
    if config.checkpoint.initial is not None:
        raise ConfigError(
            "checkpoint.initial is set, and what task.kind preference compares with is the model in model.path",
            "make a model of that checkpoint with drumline export, and name it in model.path",
        )
    add_reference(model, config.model)
    tail = choose_chunked("auto", model)
    vocab_size = int(text_config(model).vocab_size)
    return Preference(vocab_size, task.beta, task.label_smoothing, tail if isinstance(tail, Tail) else None)
