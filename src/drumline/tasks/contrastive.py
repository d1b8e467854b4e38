"""Pairs that belong together, against all others of a micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline.errors import ConfigError, DataError
from drumline.parallel.strategy import Batch, Loss
from drumline.tasks.batches import call_model, in_full
from drumline.tasks.function import count_samples

if TYPE_CHECKING:
    from torchmetrics import Metric

ANCHOR, POSITIVE = "anchor", "positive"


class Contrastive:
    """InfoNCE (van den Oord et al. 2018), summed over rows: each anchor picks its positive among the micro-batch's.

    Batches are {"anchor": inputs, "positive": inputs}, of the same pairs in the same order; the model is called on
    each and gives embeddings [B, D], which are compared by their cosine over `temperature`.

    What a row is compared with is its micro-batch, so that the loss, unlike the metric, follows the micro-batch size;
    the size of a micro-batch should be stated, and a row alone teaches nothing.
    """

    unit = "samples"
    needs_count = False
    """The total is a sum."""

    def __init__(self, temperature: float = 0.05) -> None:
        self._temperature = temperature

    def count(self, batch: Batch) -> int:
        """Pairs; DataError where a batch has none."""
        sizes = [count_samples(_part(batch, name)) for name in (ANCHOR, POSITIVE)]
        if sizes[0] != sizes[1]:
            raise DataError(f"a batch has {sizes[0]} anchors and {sizes[1]} positives", "give both of each pair")
        return sizes[0]

    def check(self, batch: Batch) -> None:
        """Nothing is known about the inputs."""

    def forward(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Embeddings [B, D] of length 1, by name; of the anchors alone where a batch has no positives."""
        present = [name for name in (ANCHOR, POSITIVE) if name == ANCHOR or name in batch]
        return {name: F.normalize(_embeddings(call_model(model, _part(batch, name))), dim=-1) for name in present}

    def loss(self, outputs: dict[str, Tensor], batch: Batch) -> Loss:
        """The sum over pairs."""
        anchors, positives = outputs[ANCHOR], outputs[POSITIVE]
        # In half precision, a similarity over the temperature would be off by several per cent.
        with torch.autocast(anchors.device.type, enabled=False):
            scores = anchors @ positives.T / self._temperature
        return Loss(F.cross_entropy(scores, torch.arange(len(scores), device=scores.device), reduction="sum"))

    def metrics(self) -> dict[str, Metric]:
        """Accuracy: anchors whose own positive is the most similar one among 1,000 rows that follow one another."""
        from drumline.tasks.all_rows import Retrieval

        return {"accuracy": Retrieval()}

    def measure(self, metrics: Mapping[str, Metric], outputs: dict[str, Tensor], batch: Batch) -> None:
        """Take in one batch."""
        metrics["accuracy"].update(outputs[ANCHOR], outputs[POSITIVE])

    def predict(self, outputs: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Embeddings of length 1, by name."""
        return outputs


def _part(batch: Batch, name: str) -> Any:
    if not isinstance(batch, Mapping) or name not in batch:
        found = f"has {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else f"is a {type(batch).__name__}"
        raise DataError(
            f"a batch of pairs needs '{name}', and this one {found}",
            f"let the data set or its collate function give a mapping with '{ANCHOR}' and '{POSITIVE}'",
        )
    return batch[name]


def _embeddings(outputs: Any) -> Tensor:
    if not isinstance(outputs, Tensor) or outputs.dim() != 2:
        raise ConfigError(
            f"the model returned {f'shape {list(outputs.shape)}' if isinstance(outputs, Tensor) else type(outputs)}, "
            "and one embedding a row is needed",
            "let its forward return a tensor [rows, size]; models.huggingface.load_model does so for head embedding",
        )
    return in_full(outputs)
