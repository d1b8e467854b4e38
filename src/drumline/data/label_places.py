"""Where the labels of a batch are that count, found on the CPU, so that the others cost no row of the output layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from drumline.data.packing import NO_LABEL
from drumline.data.source import Collate

PLACES = "label_places"
"""Name of the entry in a batch."""

STEPS = 8
"""Numbers of places are multiples of a batch's tokens over this: few shapes for compiled code and for the allocator."""


class LabelPlaces:
    """Collate function around another one: adds `label_places` int64 [K] to batches of which at most half counts.

    They point into the flattened labels: all that count, in order, and then one that does not until K is a multiple of
    an eighth of the batch's tokens. Batches without labels, or with more of them, stay as they are. Of a batch of named
    parts, as pairs are, each is looked at.
    """

    def __init__(self, collate: Collate) -> None:
        self._collate = collate

    def __call__(self, rows: list[Any]) -> Any:
        """Make one batch of rows."""
        return with_places(self._collate(rows))


def with_places(batch: Any) -> Any:
    """The batch with what is said above; each part of a batch of several parts."""
    if not isinstance(batch, Mapping):
        return batch
    if not isinstance(labels := batch.get("labels"), Tensor):
        return {name: with_places(part) for name, part in batch.items()}
    places = places_of(labels)
    return batch if places is None else {**batch, PLACES: places}


def places_of(labels: Tensor) -> Tensor | None:
    """The places [K] in labels of any shape, as above; None where more than half of the labels count."""
    counts = (labels != NO_LABEL).flatten()
    found = counts.nonzero().squeeze(1)
    step = -(-len(counts) // STEPS)
    wanted = max(1, -(-len(found) // step)) * step
    if 2 * wanted > len(counts):
        return None
    other = int(counts.logical_not().nonzero()[0])
    return torch.cat([found, found.new_full((wanted - len(found),), other)])
