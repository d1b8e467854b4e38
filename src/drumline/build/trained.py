"""What a run has trained, taken out of a checkpoint: its weights, of an adapter with its model or without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from drumline.config.kept import Asked, checkpoint_of
from drumline.config.load import load_config
from drumline.config.model import AdapterConfig, HuggingFaceModel
from drumline.config.schema import RunConfig
from drumline.engine.checkpoint import read_checkpoint
from drumline.errors import ConfigError, DataError
from drumline.models.folder import CONFIG, base_of
from drumline.parallel.keys import tied_names
from drumline.parallel.saved_names import base_problem
from drumline.rundir import RunDir


@dataclass(frozen=True)
class Trained:
    """A run's weights after one of its updates."""

    run: RunDir
    config: RunConfig
    weights: dict[str, Tensor]
    """By the bare model's names; of a run with an adapter only what was trained. Averaged where the run averages."""
    averaged: bool
    step: int
    skipped: list[str]
    """Checkpoints that would have come first and are not whole, and why, a line each."""
    base: Mapping[str, str] | None
    """What tells the model that an adapter belongs to from others; None where all weights are here."""

    @property
    def adapter(self) -> AdapterConfig | None:
        """The adapter that was trained; None: the model itself was."""
        return getattr(self.config.model, "adapter", None)


def read_trained(run: RunDir, step: Asked) -> Trained:
    """The weights in a run's checkpoint of this step, in the best, or in the newest valid one; see `checkpoint_of`.

    Where weights were averaged, the average is what counts, as it is what is evaluated.
    """
    path, skipped = checkpoint_of(run, step)
    state = read_checkpoint(path)
    weights, averaged = final_weights(state["strategy"])
    update = int(state["progress"]["step"])
    return Trained(run, load_config(run.config), weights, averaged, update, skipped, state.get("base"))


def final_weights(strategy: Mapping[str, Any]) -> tuple[dict[str, Tensor], bool]:
    """What an evaluation would run on, by name, and whether it is an average; what is no tensor is left out."""
    weights = {name: value for name, value in strategy["model"].items() if isinstance(value, Tensor)}
    average = strategy["average"]
    if average is None or not average["averages"]:
        return weights, False
    # Of tied weights, which are one tensor here, the average has the first name only.
    # It also averages buffers that a checkpoint of an adapter leaves to its base.
    means = {name: value for name, value in average["averages"].items() if name in weights}
    by_place = {weights[name].data_ptr(): value for name, value in means.items() if weights[name].numel()}
    cast: dict[int, Tensor] = {}
    for name, value in weights.items():
        mean = means.get(name, by_place.get(value.data_ptr()) if value.numel() else None)
        if mean is not None:
            weights[name] = cast.setdefault(id(mean), mean.to(value.dtype))
    return weights, True


def whole_weights(trained: Trained) -> dict[str, Tensor]:
    """The weights of a model without adapter that computes what was trained, by its bare names."""
    if trained.adapter is None:
        return trained.weights
    from drumline.models.adapters import merged

    model = model_with_adapter(trained)
    weights = dict(trained.weights)
    for name, others in tied_names(model).items():  # of tied weights a checkpoint may hold one name only
        if name in trained.weights:
            weights.update((other, trained.weights[name]) for other in others if other not in weights)
    return merged(model, weights)


def model_with_adapter(trained: Trained) -> nn.Module:
    """The model that training began with, its adapter in place, which holds nothing yet.

    Raises ConfigError where the model is not at its place any more, or is another one than it was.
    """
    from drumline.models.adapters import with_adapter

    config, adapter = trained.config.model, trained.adapter
    assert isinstance(config, HuggingFaceModel) and adapter is not None
    if not (trained.run.model / CONFIG).is_file():
        raise DataError(f"{trained.run.path} does not say of which shape its model is", "export another run")
    changes = {"adapter": adapter.model_copy(update={"initial": None}), "embedding_noise": 0.0}
    config = config.model_copy(update=changes)
    body = base_of(config, trained.run.model, frozenset(trained.weights))
    # All that matters of its head is whether it is new with the data's classes.
    classifies = type(body).__name__.endswith("Classification")
    model = with_adapter(body, config, "sequence_classification" if classifies else "causal")
    if trained.base is not None and (misfit := base_problem(model, trained.base, trained.weights)) is not None:
        raise DataError(f"the checkpoint of {trained.run.path} does not fit: {misfit[0]}", misfit[1])
    return model


def folder_of(trained: Trained) -> Path | None:
    """The folder of the model that training began with; None where it is not there any more, or there was none."""
    from drumline.models.hub import find_folder

    if not isinstance(trained.config.model, HuggingFaceModel):
        return None
    try:
        return find_folder(trained.config.model, weights=False)
    except (ConfigError, DataError):
        return None
