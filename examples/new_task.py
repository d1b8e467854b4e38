"""How a task of one's own is made: quantiles of how a disease goes on, which no task of drumline's learns.

    python examples/new_task.py
    drumline launch --set hardware.num_processes=2 examples/new_task.py

A task is a class with four methods: `count` (units of a batch that the loss is a sum over), `check` (values that the
model cannot take; called in the loader), `forward` and `loss`. All else is taken up where it is there: `metrics` and
`measure`, whose states are merged over all processes; `derived`, values that follow from the means; `predict`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from torchmetrics import MeanMetric, Metric

from drumline import Loss, TrainConfig, Trainer
from drumline.tasks.batches import call_model, has_labels, labels_of
from drumline.tasks.ranges import check_numbers

Batch = tuple[Tensor, Tensor]


class Quantile:
    """The value that a share of all rows with such inputs stay under (Koenker and Bassett 1978)."""

    unit = "samples"

    def __init__(self, share: float) -> None:
        self.share = share

    def count(self, batch: Batch) -> int:
        """Rows."""
        return len(labels_of(batch))

    def check(self, batch: Batch) -> None:
        """Raise for labels that are not finite."""
        if has_labels(batch):
            check_numbers(labels_of(batch), num_targets=1)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """Values [B]."""
        return call_model(model, batch).squeeze(-1)

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        """The sum over rows."""
        missing = labels_of(batch) - outputs
        return Loss(torch.where(missing > 0, self.share * missing, (self.share - 1) * missing).sum())

    def metrics(self) -> dict[str, Metric]:
        """Coverage: the share of rows that do stay under their value."""
        return {"coverage": MeanMetric()}

    def measure(self, metrics: Mapping[str, Metric], outputs: Tensor, batch: Batch) -> None:
        """Take in one batch."""
        metrics["coverage"].update((labels_of(batch) <= outputs).float())

    def predict(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The value of each row, [B]."""
        return outputs


values, progress = (torch.tensor(column) for column in load_diabetes(return_X_y=True, scaled=False))
values = (values - values.mean(0)) / values.std(0)
progress = progress / progress.std()
order = torch.randperm(len(values), generator=torch.Generator().manual_seed(0))
train, held_out = (TensorDataset(values[rows], progress[rows]) for rows in (order[:342], order[342:]))

torch.manual_seed(0)
config = TrainConfig(global_batch=16, epochs=12, lr=0.03, precision="fp32")
with Trainer(nn.Linear(10, 1).double(), config, train, eval_data=held_out, loss=Quantile(0.9)) as trainer:
    trainer.fit()
