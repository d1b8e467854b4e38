"""Large values from every rank to every rank."""

from __future__ import annotations

import pickle
from typing import Any, TypeVar

import torch.distributed as dist

from drumline.parallel.groups import Groups

T = TypeVar("T")

PIECE_BYTES = 16 * 1024 * 1024
"""Sent at a time: NCCL sends from GPU memory, which holds a piece of every rank."""


def gather(groups: Groups, value: T, place: str) -> list[T]:
    """Every rank's value, by rank; all ranks come with the same `place`. Tensors in it must be on the CPU.

    A tensor that is a view takes all that it is a view of along: copy it before.
    """
    if groups.train is None:
        return [value]
    data = pickle.dumps(value)
    sizes = groups.side.exchange(place, len(data))
    groups.side.announce(f"the transfer of {place}")
    whole = [bytearray() for _ in sizes]
    for start in range(0, max(sizes), PIECE_BYTES):
        pieces: list[Any] = [None] * len(sizes)
        dist.all_gather_object(pieces, data[start : start + PIECE_BYTES], group=groups.train)
        for part, piece in zip(whole, pieces, strict=True):
            part += piece
    return [pickle.loads(part) for part in whole]
