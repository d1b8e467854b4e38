"""The model that a preference run began with, for the comparison with what it becomes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from drumline.config.model import HuggingFaceModel

REFERENCE = "reference"
"""Name of the frozen copy inside the model."""

T = TypeVar("T")


class Frozen(nn.Module):
    """A model that is not trained, always computes as in evaluation, and is in no state dict."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        self.train()
        self.register_load_state_dict_post_hook(not_missing)  # type: ignore[no-untyped-call]

    def train(self, mode: bool = True) -> Frozen:
        """Evaluation mode, whatever the model around it is put into."""
        return super().train(False)

    def state_dict(self, *_: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """What is around it, without its own values."""
        return {} if destination is None else destination


def not_missing(module: nn.Module, keys: Any) -> None:
    """Take back that a Frozen's values were not among those that were loaded."""
    inside = f".{REFERENCE}.model."
    keys.missing_keys[:] = [key for key in keys.missing_keys if inside not in f".{key}"]


def add_reference(model: nn.Module, config: HuggingFaceModel) -> None:
    """See to it that a model can be compared with itself at the start; call it before anything is trained or loaded.

    With an adapter that starts at nothing, and without which all weights stay as they are, the model has its own
    reference inside: it is run without the adapter. Else a frozen copy becomes a module of it, which costs its weights
    once more, sharded where the model's are, and which no checkpoint holds: at resume it is made anew, as the model is
    before the checkpoint is loaded. Log-probabilities computed once before training would spare that memory and a
    forward pass an update. They were not taken: they need rows that can be read twice and a file beside the run, and in
    half precision a row's value follows what it is padded with, so that the loss would not begin at log 2.
    """
    adapter = config.adapter
    if adapter is None or adapter.initial is not None or adapter.train_also:
        setattr(model, REFERENCE, Frozen(copy.deepcopy(model)))


def run_reference(model: nn.Module, function: Callable[[nn.Module], T]) -> T:
    """function(the model as it was at the start), without gradient. It needs `add_reference` before."""
    copied: Any = getattr(model, REFERENCE, None)
    with torch.no_grad():
        if copied is not None:
            return function(copied.model)
        from drumline.models.adapters import without_adapter

        with without_adapter(model):
            return function(model)
