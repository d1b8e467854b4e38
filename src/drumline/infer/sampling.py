"""Which token comes next: the likeliest, or one drawn, with a stream of its own for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drumline.data.tokenizers import Ids

_PURPOSE = 0x67656E
"""First number of these streams' keys, so that nothing else that is seeded with the same number draws the same."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; see config.inference.GenerateTask."""

    temperature: float = 0.0
    """0: always the likeliest, and the next two do not count."""
    top_p: float = 1.0
    top_k: int | None = None
    repetition_penalty: float = 1.0
    seed: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether it is the model's likeliest token at each step, without more ado."""
        return self.temperature == 0 and self.repetition_penalty == 1


def uniforms(seed: int, row: int, count: int) -> NDArray[np.float64]:
    """Numbers in [0, 1) that depend on the seed, the row and their place only; more of them begin with the same."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((_PURPOSE, seed, row)))).random(count)


def draw(scores: Tensor, sampling: Sampling, uniform: Tensor) -> Tensor:
    """One token a row by inversion of the distribution function: [B, V] scores, [B] float64 in [0, 1), to [B] int64.

    top_k is applied before top_p, as transformers does. In double precision, since a sum over a whole vocabulary in
    single precision depends on the order in which a GPU adds.
    """
    if sampling.top_k is None and sampling.top_p >= 1:
        total = (scores.double() / sampling.temperature).softmax(-1).cumsum(-1)
        return _invert(total, uniform).clamp(max=scores.shape[-1] - 1)
    # Stable: of equal scores the lower id is first, on every device.
    scores, order = scores.sort(dim=-1, descending=True, stable=True)
    if sampling.top_k is not None:
        scores = scores[:, : sampling.top_k]
    shares = (scores.double() / sampling.temperature).softmax(-1)
    # The token that crosses top_p is still in, and so is the first one always.
    is_kept = shares.cumsum(-1) - shares < sampling.top_p
    is_kept[:, 0] = True
    place = _invert((shares * is_kept).cumsum(-1), uniform)
    return order.gather(-1, torch.minimum(place, is_kept.sum(-1) - 1)[:, None])[:, 0]


def _invert(total: Tensor, uniform: Tensor) -> Tensor:
    aim = uniform[:, None] * total[:, -1:]
    return torch.searchsorted(total, aim, right=True)[:, 0]


class Chooser:
    """Chooses the tokens of one batch, step by step; what a row gets does not depend on the others."""

    def __init__(self, sampling: Sampling, rows: Sequence[tuple[int, Ids] | None], steps: int) -> None:
        """rows: number and prompt of each; None for one that is filled in for."""
        self._sampling, self._rows = sampling, rows
        self._uniform: Tensor | None = None
        self._seen: Tensor | None = None
        if sampling.temperature > 0:
            drawn = [np.zeros(steps) if row is None else uniforms(sampling.seed, row[0], steps) for row in rows]
            self._uniform = torch.from_numpy(np.stack(drawn))

    def choose(self, scores: Tensor, step: int) -> Tensor:
        """The next token of each row, [B] int64 where the scores [B, V] are; steps count from 0 and come in order."""
        scores = scores.float()
        penalty = self._sampling.repetition_penalty
        if penalty != 1:
            if self._seen is None:
                self._seen = self._in_prompts(scores)
            scores = torch.where(self._seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)
        if self._uniform is None:
            tokens = scores.argmax(-1)
        else:
            self._uniform = self._uniform.to(scores.device)
            tokens = draw(scores, self._sampling, self._uniform[:, step])
        if self._seen is not None:
            self._seen.scatter_(1, tokens[:, None], True)
        return tokens

    def _in_prompts(self, scores: Tensor) -> Tensor:
        """[B, V]: whether the row's prompt holds the token."""
        seen = torch.zeros(scores.shape, dtype=torch.bool)
        for place, row in enumerate(self._rows):
            if row is not None:
                seen[place, torch.from_numpy(np.unique(row[1]))] = True
        return seen.to(scores.device)
