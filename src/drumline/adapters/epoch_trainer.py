"""A Trainer that other people's code drives an epoch a call; what the adapters' trainers have in common."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drumline.rundir import write_atomic

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from drumline.config.schema import RunConfig, TrackConfig
    from drumline.engine.trainer import Trainer
    from drumline.launcher.world import World

LEARNING_RATE = 1e-3
"""Of the optimizer that is made where none is given."""
ENDLESS = 1_000_000
"""Epochs of a run whose end is in somebody else's loop."""


def mean_loss(loss: Callable[[Any, Any], Tensor] | None) -> Callable[[nn.Module, Any], Tensor]:
    """Trainer's `loss(model, batch)` of a `loss(outputs, targets)`, where batches are pairs; None: cross-entropy.

    None with batches that are mappings: the loss in the output of `model(**batch)`, as Hugging Face's models have it.
    """
    from torch.nn.functional import cross_entropy

    def of_pair(model: nn.Module, batch: Any) -> Tensor:
        if loss is None and isinstance(batch, Mapping):
            output: Tensor = model(**batch)
            return output
        inputs, targets = batch
        return (cross_entropy if loss is None else loss)(model(inputs), targets)

    return of_pair


def logged_once_an_epoch(config: RunConfig) -> TrackConfig:
    """Its `track` without a screen, and with a log line an epoch, which has its means."""
    return config.track.model_copy(update={"every": "epoch", "console": False})


class EpochTrainer:
    """Trains a model an epoch a call, evaluates and saves on request; all ranks call it together.

    loss: `loss(outputs, targets)`, a mean over the samples, of batches that are pairs of inputs and targets; none:
    cross-entropy. optimizer: over the model's parameters; none: AdamW at LEARNING_RATE. config: without lengths, which
    the calls decide. train_data, eval_data, world: as Trainer takes them.
    """

    def __init__(
        self,
        model: nn.Module,
        config: RunConfig,
        train_data: Any,
        eval_data: Any = None,
        loss: Callable[[Any, Any], Tensor] | None = None,
        optimizer: Optimizer | None = None,
        world: World | None = None,
    ) -> None:
        import torch

        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE) if optimizer is None else optimizer
        self._asked = self._config = config
        self._data = (train_data, eval_data)
        self._loss = mean_loss(loss)
        self._world = world
        self._trainer: Trainer | None = None
        self._epochs = 0

    @property
    def trainer(self) -> Trainer:
        """The trainer itself, started by whoever uses it first."""
        if self._trainer is None:
            from drumline.engine.trainer import Options, Trainer

            train, held_out = self._data
            lengths = self._config.train.model_copy(update={"epochs": ENDLESS})
            config = self._config.model_copy(update={"track": logged_once_an_epoch(self._config), "train": lengths})
            options: Options = {"eval_data": held_out, "loss": self._loss, "optimizer": self.optimizer}
            if self._world is not None:
                options["world"] = self._world
            self._trainer = Trainer(self.model, config, train, **options)
        return self._trainer

    def train(self, config: RunConfig | None = None) -> dict[str, float]:
        """One epoch: its mean `loss`, `samples`, `updates` and `seconds`.

        config: where it is another one than before, the model and its optimizer go on under that.
        """
        if config is not None and config != self._asked:
            self.close()
            self._asked = config
            self._config = config.model_copy(update={"seed": config.seed + self._epochs})  # another order than before
        began, loss, found = time.perf_counter(), float("nan"), {"samples": 0, "updates": 0}
        try:
            for info in self.trainer.steps(epochs=1):
                found["samples"] += info.samples
                found["updates"] += 1
                if info.logged is not None:
                    loss = info.logged.get("loss", loss)
        except BaseException:
            self.close()  # the next call starts anew, with the model as it is
            raise
        self._epochs += 1
        return {"loss": loss, "seconds": time.perf_counter() - began, **found}

    def evaluate(self) -> dict[str, float]:
        """Metrics over the evaluation data, each sample once."""
        return self.trainer.evaluate()

    def save(self, path: str | Path, epoch: int, **others: Any) -> Path:
        """Write what people keep in a .pth file: epoch, model_state_dict, optimizer_state_dict, and the others.

        Rank 0 does it, and the other ranks do not wait for the file.
        """
        import torch

        from drumline.parallel.groups import started_world

        path = Path(path)
        if (self._world or started_world()).rank == 0:
            states = {"model_state_dict": self.model.state_dict(), "optimizer_state_dict": self.optimizer.state_dict()}
            file = io.BytesIO()
            torch.save({"epoch": epoch, **states, **others}, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, file.getvalue())
        return path

    def load(self, path: str | Path) -> Mapping[str, Any]:
        """Go on with the weights and the optimizer of such a file; what else it holds comes back."""
        import torch

        self.close()
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        self.model.load_state_dict(found.pop("model_state_dict"))
        self.optimizer.load_state_dict(found.pop("optimizer_state_dict"))
        return found

    def close(self) -> None:
        """Give back what it holds; the model stays, and another call starts anew."""
        if self._trainer is not None:
            self._trainer.close()
        self._trainer = None
