"""The tokens with which all prompts begin: their keys and values are computed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drumline.data.tokenizers import Ids
from drumline.infer.causal import Causal

LEAST_TOKENS = 32
"""Of fewer, copying them into each batch's cache saves nothing worth a second way through the model."""
LEAST_ROWS = 2
LEAST_SHARE = 0.125
"""Of all tokens of the prompts. Behind a prefix attention needs a mask, and is slower than without."""


def shared_prefix(prompts: Sequence[Ids], least: int = LEAST_TOKENS) -> list[int]:
    """The longest beginning that all prompts share, none of which is it whole; empty where that is too short."""
    if len(prompts) < LEAST_ROWS:
        return []
    length = min(map(len, prompts)) - 1
    first = prompts[0]
    for other in prompts[1:]:
        differs = np.flatnonzero(first[:length] != other[:length])
        length = int(differs[0]) if len(differs) else length
    return [int(each) for each in first[:length]] if length >= least else []


def is_worth_it(prefix: Sequence[int], prompts: Sequence[Ids]) -> bool:
    """Whether so much is spared by a beginning that all of the prompts share that it pays."""
    return len(prefix) * len(prompts) >= LEAST_SHARE * sum(map(len, prompts)) > 0


def begins(prompt: Ids, prefix: Sequence[int]) -> bool:
    """Whether a prompt begins so, and goes on."""
    return len(prompt) > len(prefix) and bool(np.array_equal(prompt[: len(prefix)], np.asarray(prefix)))


class PrefixCache:
    """Keys and values of one prefix, made when they are first needed."""

    def __init__(self, causal: Causal, ids: Sequence[int]) -> None:
        self._causal = causal
        self.ids = tuple(ids)
        self._layers: list[tuple[Tensor, Tensor]] = []

    def copies(self, rows: int) -> Any:
        """A growing cache with the prefix in each of so many rows."""
        if not self._layers:
            cache = self._causal.new_cache()
            given = torch.tensor([self.ids], device=self._causal.device)
            self._causal(given, None, torch.arange(len(self.ids), device=given.device)[None], cache)
            self._layers = [(layer.keys, layer.values) for layer in cache.layers]
        cache = self._causal.new_cache()
        for layer, (keys, values) in zip(cache.layers, self._layers, strict=True):
            layer.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1))
        return cache
