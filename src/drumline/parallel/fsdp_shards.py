"""Shards of parameters, and of all that has their shape: cut out of whole tensors and put together again."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

# torch 2.13 has a new name for it and warns about the old one.
all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Peers:
    """A group of ranks for all that need it, until one call lets go of it: only then do gloo's sockets close."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group: dist.ProcessGroup | None = group
        self.rank, self.size = group.rank(), group.size()

    @property
    def group(self) -> dist.ProcessGroup:
        """What collectives take."""
        assert self._group is not None
        return self._group

    def close(self) -> None:
        """Let go of it."""
        self._group = None


class Shard(NamedTuple):
    """One parameter of a sharded model."""

    sharded: nn.Parameter
    """As the model has it between passes: a DTensor, whose gradient is the reduced one."""
    local: nn.Parameter
    """This rank's part of it as a plain tensor in the same memory; empty where the ranks outnumber its rows."""


class Layout:
    """How tensors are cut: along the first dimension in equal parts, rounded up, so that the last ranks may get less.

    As torch.chunk and fully_shard do.
    """

    def __init__(self, peers: Peers, device: torch.device) -> None:
        """peers: the ranks that hold one set of shards."""
        self._peers = peers
        self._device = device

    def cut(self, whole: Tensor) -> Tensor:
        """The part of this rank, a view."""
        rows = self._rows(whole.shape)
        return whole[self._peers.rank * rows : (self._peers.rank + 1) * rows]

    def begin(self, shape: torch.Size) -> int:
        """The first row of the part of this rank."""
        return min(self._peers.rank * self._rows(shape), shape[0])

    def _rows(self, shape: torch.Size) -> int:
        return -(-shape[0] // self._peers.size)

    @torch.no_grad()
    def join(self, part: Tensor, shape: torch.Size) -> Tensor:
        """The whole tensor of this shape on the device, out of every rank's part; all ranks call it."""
        rows = self._rows(shape)
        padded = torch.zeros((rows, *shape[1:]), dtype=part.dtype, device=self._device)
        padded[: len(part)] = part
        whole = torch.empty((self._peers.size * rows, *shape[1:]), dtype=part.dtype, device=self._device)
        # As bytes, since not every backend knows every type.
        all_gather(as_bytes(whole), as_bytes(padded), group=self._peers.group)
        return whole[: shape[0]]


def as_bytes(tensor: Tensor) -> Tensor:
    """A contiguous tensor's memory."""
    return tensor.view(-1).view(torch.uint8)


def local_shard(p: nn.Parameter) -> Shard | None:
    """The shard of a parameter; None for one that is whole on every rank."""
    part = getattr(p, "_local_tensor", None)
    return None if part is None else Shard(p, nn.Parameter(part.detach(), requires_grad=p.requires_grad))
