"""Random streams where one process runs several shards."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


class ShardStreams:
    """Gives each shard of a process the streams that it would have in a process of its own.

    On the CPU shards take turns, and each goes on where it stopped. On GPUs each device's own stream is its shard's;
    those of Python, NumPy and torch's CPU are the first shard's, and all threads draw from them.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = devices
        self._begin: Callable[[int], None] | None = None
        self._kept: dict[int, tuple[Any, Any, torch.Tensor]] = {}

    def begin(self, streams: Callable[[int], None]) -> None:
        """Begin all shards' streams; streams(i) sets the process's to those of shard i."""
        if self._devices[0].type == "cpu":
            self._begin = streams
            self._kept.clear()
            return
        generators = [torch.cuda.default_generators[device.index] for device in self._devices]
        seeds = []
        for shard in reversed(range(len(generators))):  # the first one's last: they are the process's from here on
            streams(shard)
            seeds.append(generators[shard].initial_seed())
        for generator, seed in zip(generators, reversed(seeds), strict=True):
            generator.manual_seed(seed)

    @contextmanager
    def of(self, shard: int) -> Iterator[None]:
        """On the CPU, inside, the process's streams are this shard's."""
        if self._begin is None:
            yield
            return
        if shard in self._kept:
            python_state, numpy_state, torch_state = self._kept[shard]
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            torch.set_rng_state(torch_state)
        else:
            self._begin(shard)
        yield
        self._kept[shard] = (random.getstate(), np.random.get_state(), torch.get_rng_state())
