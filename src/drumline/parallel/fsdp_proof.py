"""Proof that an optimizer over shards moves the model: one that holds other tensors trains nothing, without a word."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from drumline.errors import DrumlineError
from drumline.parallel.fsdp_shards import Peers
from drumline.parallel.strategy import Outcome
from drumline.parallel.update import local_part

SAMPLE = 1024
"""Elements that are looked at of each parameter's shard."""


class Sample(NamedTuple):
    """The beginning of one shard before an update."""

    now: Tensor
    """A view of what the model has."""
    before: Tensor
    due: Tensor
    """Which elements have a gradient that is not zero."""


class Proof:
    """Looks at each learner's first update that was applied with a rate above zero."""

    def __init__(self, peers: Peers, device: torch.device) -> None:
        self._peers = peers
        self._device = device
        self._proven: set[str] = set()

    def before(self, name: str, gradients: list[tuple[Tensor, Tensor]]) -> list[Sample] | None:
        """What to look at after the update, of (parameter of the model, its gradient); None: no need to look.

        Half-precision parameters are left out: a first step may be too small for their 8 or 11 bits.
        """
        if name in self._proven:
            return None
        samples = []
        for p, gradient in gradients:
            now, due = (local_part(t).detach().flatten()[:SAMPLE] for t in (p, gradient))
            if now.dtype.itemsize >= 4:
                samples.append(Sample(now, now.clone(), (due != 0) & torch.isfinite(due)))
        return samples

    def after(self, name: str, samples: list[Sample], outcome: Outcome) -> None:
        """Raise DrumlineError on all ranks where nothing moved on any of them."""
        if not bool(outcome.applied) or not float(outcome.lr):
            return
        counts = torch.zeros(2, dtype=torch.int64, device=self._device)
        for now, before, due in samples:
            counts += torch.stack([due.sum(), (due & (now != before)).sum()]).to(self._device)
        dist.all_reduce(counts, group=self._peers.group)
        num_due, num_moved = counts.tolist()
        if num_due and not num_moved:
            raise DrumlineError(
                f"the first update{'' if name == 'main' else f' of {name}'} moved none of the model's weights, though "
                "they have gradients",
                "make the optimizer from the parameters of the model that is handed in; a learning rate may be too "
                "small for their type, too",
            )
        self._proven.add(name)
