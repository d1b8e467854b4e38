"""Your own model for `drumline train custom`: change what you like.

drumline runs this file in every process and calls make_model. Where the file defines one of these, it is called too:

    make_data(config)       returns (train, eval), torch data sets or DataLoaders; the recipe then has no section data
    loss(model, batch)      returns a mean, or a drumline.Loss; the recipe's section task is then not used
    make_task(config)       returns a task, which also has metrics, in place of loss: see docs/train.md
    make_optimizer(model)   returns a torch optimizer, whose rates follow train.schedule

A loss of your own on `data: {kind: records}` gets each column by its name: numbers as tensors, texts as lists.
"""

from __future__ import annotations

from torch import Tensor, nn

from drumline.config.schema import RunConfig
from drumline.models.python_file import DataFacts


class Mlp(nn.Module):
    """Two layers over all pixels. What a batch holds besides labels is handed to forward by name."""

    def __init__(self, num_inputs: int, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(num_inputs, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, num_classes)
        )

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Images [B, C, H, W] to scores [B, num_classes]."""
        return self.layers(pixel_values)


def make_model(config: RunConfig, data: DataFacts) -> nn.Module:
    """The model; `config` is the whole recipe, `data` says what its data holds: classes, channels, size and more."""
    return Mlp(data.channels * data.size**2, len(data.classes))
