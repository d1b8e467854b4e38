"""Text of a causal model, a batch at a time: all rows take a step together until the last one is over.

Rows that are over are computed on, because a batch of another shape would give its other rows other last bits.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from drumline.data.tokenizers import Ids
from drumline.infer.causal import Causal
from drumline.infer.endings import Endings, Written
from drumline.infer.prefix import PrefixCache, begins
from drumline.infer.sampling import Chooser, Sampling

CHECK_STEPS = 8
"""A GPU is asked whether all rows are over every so many steps, since it waits for nothing in between."""


@dataclass(frozen=True)
class Prompt:
    """What a model goes on from."""

    number: int
    """The row's, for its random stream."""
    ids: Ids
    limit: int
    """Most tokens of its answer; at least 1."""


class Stepper(Protocol):
    """A model in the midst of a batch."""

    def start(self, prompts: Sequence[Prompt | None], width: int, most: int) -> Tensor:
        """Scores [B, V] of the first new token of each row; None is a row of one token that stands for nothing.

        width: of the longest prompt that the batch was planned with; most: new tokens that any row may get.
        """

    def step(self, tokens: Tensor) -> Tensor:
        """Scores [B, V] of the token after these [B]."""


def decode(
    stepper: Stepper, prompts: Sequence[Prompt | None], shape: tuple[int, int], sampling: Sampling, endings: Endings
) -> list[Written | None]:
    """Answers of the prompts that are there, in their order; None where the model's scores were NaN or infinite.

    shape: width and most, as of Stepper.start.
    """
    ways = stepper.ways(prompts) if isinstance(stepper, Padded) else [prompts]
    if len(ways) > 1:
        found = [iter(decode(stepper, way, shape, sampling, endings)) for way in ways]
        places = [place for place, prompt in enumerate(prompts) if prompt is not None]
        return [next(own) for place in places for own, way in zip(found, ways, strict=True) if way[place] is not None]
    present = [(place, prompt) for place, prompt in enumerate(prompts) if prompt is not None]
    steps = max((prompt.limit for _, prompt in present), default=0)
    rows = [None if prompt is None else (prompt.number, prompt.ids) for prompt in prompts]
    chooser = Chooser(sampling, rows, steps)
    with torch.inference_mode():
        if not present:
            return []
        scores = stepper.start(prompts, *shape)
        limits = torch.tensor([0 if prompt is None else prompt.limit for prompt in prompts], device=scores.device)
        ends = torch.tensor(endings.ends, dtype=torch.int64, device=scores.device)
        over = limits == 0
        broken = torch.zeros_like(over)
        made: list[Tensor] = []
        every = CHECK_STEPS if endings.stop or scores.is_cuda else 1
        for step in range(steps):
            tokens = chooser.choose(scores, step)
            made.append(tokens)
            broken = broken | (~over & ~scores.amax(-1).isfinite())
            over = over | broken | torch.isin(tokens, ends) | (limits <= step + 1)
            if step + 1 == steps or ((step + 1) % every == 0 and _all_over(over, made, prompts, endings)):
                break
            scores = stepper.step(tokens)
        written, failed = torch.stack(made, dim=1).tolist(), broken.tolist()
    return [None if failed[place] else endings.judge(written[place], prompt.limit) for place, prompt in present]


def _all_over(over: Tensor, made: Sequence[Tensor], prompts: Sequence[Prompt | None], endings: Endings) -> bool:
    """Whether no row goes on; stop texts are looked for in those that no id has ended."""
    if not endings.stop:
        return bool(over.all())
    ids = torch.stack(list(made), dim=1).tolist()
    left = [(place, prompts[place]) for place, is_over in enumerate(over.tolist()) if not is_over]
    return all(endings.judge(ids[place], prompt.limit) is not None for place, prompt in left if prompt is not None)


class Padded:
    """Steps of a transformers model with a cache that grows by a column a step.

    Where the cache may have gaps, prompts are filled up at their right ends: no query needs a mask then while prompts
    are read, so that the fastest kernels take them, which read the heads of keys and values as they are. The last
    token of each prompt is left to the first step, in one column for all. Else they are filled up at the left.
    In a batch of several rows there is a column more than the longest needs: transformers drops a mask that covers
    nothing, and with it the kernel, so that rows of one length would have other last bits beside one that is filled in.
    """

    def __init__(self, causal: Causal, pad: int, prefix: PrefixCache | None = None) -> None:
        """prefix: used for batches of which all rows begin with it; only where the cache may have gaps."""
        self._causal, self._pad = causal, pad
        self._prefix = prefix if causal.allows_gaps else None
        self.cache: Any = None
        self.mask = torch.empty(0)
        """[B, columns]: which columns hold something of the row; those to come hold something of each."""
        self.columns = 0
        self.positions = torch.empty(0)
        """[B]: of the next token."""

    def start(self, prompts: Sequence[Prompt | None], width: int, most: int) -> Tensor:
        """See Stepper."""
        ids = [np.array([self._pad]) if prompt is None else prompt.ids for prompt in prompts]
        known = self._known(prompts)
        tails = ids if known == 0 else [each[known:] if prompts[i] is not None else each for i, each in enumerate(ids)]
        self.cache = self._causal.new_cache() if known == 0 or self._prefix is None else self._prefix.copies(len(ids))
        device = self._causal.device
        self.positions = torch.tensor([known + len(tail) for tail in tails], device=device)
        if self._causal.allows_gaps:
            return self._start_with_gaps(tails, known, width - known, most)
        width += len(ids) > 1
        given = _filled(tails, width, self._pad, left=True).to(device)
        lengths = torch.tensor([len(tail) for tail in tails])[:, None]
        own = torch.arange(width) >= width - lengths
        self.mask = torch.cat([own, torch.ones(len(ids), most, dtype=torch.bool)], dim=1).to(device)
        positions = (own.cumsum(1) - 1).clamp(min=0).to(device)
        self.columns = width
        return self.read(given, self.mask[:, :width], positions)

    def _start_with_gaps(self, tails: Sequence[Ids], known: int, width: int, most: int) -> Tensor:
        device = self._causal.device
        given = _filled([tail[:-1] for tail in tails], width, self._pad, left=False).to(device)
        lengths = torch.tensor([len(tail) - 1 for tail in tails])[:, None]
        own = torch.arange(width) < lengths
        rows = len(tails)
        ahead = torch.ones(rows, most, dtype=torch.bool)
        self.mask = torch.cat([torch.ones(rows, known, dtype=torch.bool), own, ahead], dim=1).to(device)
        positions = (known + torch.arange(width, device=device)).expand(rows, -1)
        self.columns = known + width
        self.read(given, None, positions)
        self.positions = self.positions - 1
        return self.step(torch.tensor([int(tail[-1]) for tail in tails], device=device))

    def read(self, ids: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        """Take the prompts in; their columns are counted already."""
        return self._causal(ids, mask, positions, self.cache)

    def step(self, tokens: Tensor) -> Tensor:
        """See Stepper."""
        self.columns += 1
        mask = self.mask[:, : self.columns]
        scores = self._causal(tokens[:, None], mask, self.positions[:, None], self.cache)
        self.positions = self.positions + 1
        return scores

    def rehearse(self, prompts: Sequence[Prompt], width: int, most: int) -> None:
        """Need the memory of a whole batch whose answers all have `most` tokens, in two steps."""
        scores = self.start(prompts, width, most)
        if most > 1:
            self.fill(most - 2)
            self.step(scores.argmax(-1))

    def fill(self, columns: int) -> None:
        """Let the cache be as large as after so many steps more."""
        if columns <= 0:
            return
        self.columns += columns
        for layer in self.cache.layers:
            if getattr(layer, "keys", None) is None:
                continue  # a state, which does not grow
            layer.update(_like(layer.keys, columns), _like(layer.values, columns))

    def release(self) -> None:
        """Give the memory back that is held between batches."""
        self.cache = None

    def ways(self, prompts: Sequence[Prompt | None]) -> list[Sequence[Prompt | None]]:
        """The batch as one or two of the same shape: rows with the prefix, and those without, which are rare.

        Were they together, what way a row goes would depend on the others.
        """
        if self._prefix is None:
            return [prompts]
        shares = [prompt is not None and begins(prompt.ids, self._prefix.ids) for prompt in prompts]
        found = [
            [prompt if share is wanted else None for prompt, share in zip(prompts, shares, strict=True)]
            for wanted in (True, False)
        ]
        return [way for way in found if any(prompt is not None for prompt in way)] or [prompts]

    def _known(self, prompts: Sequence[Prompt | None]) -> int:
        """Tokens that the prefix spares this batch."""
        if self._prefix is None:
            return 0
        ids = self._prefix.ids
        return len(ids) if all(prompt is None or begins(prompt.ids, ids) for prompt in prompts) else 0


def _like(states: Tensor, columns: int) -> Tensor:
    return states.new_zeros(*states.shape[:2], columns, states.shape[3])


def without_cache(model: nn.Module) -> dict[str, bool]:
    """What tells a model to keep nothing: some of transformers' else go on from the text before."""
    return {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}


class Recomputed:
    """Steps of a model without a cache, which maps ids [B, T] to scores [B, T, V], or one of transformers'.

    Each takes all tokens again.

    Rows are filled up at their right ends, which no token before them sees.
    """

    def __init__(self, model: nn.Module, pad: int, room: int | None) -> None:
        """room: most tokens of a row."""
        self._model, self._pad, self._room, self._options = model, pad, room, without_cache(model)
        self._ids = self._lengths = torch.empty(0)

    def start(self, prompts: Sequence[Prompt | None], width: int, most: int) -> Tensor:
        """See Stepper."""
        ids = [np.array([self._pad]) if prompt is None else prompt.ids for prompt in prompts]
        device = next(self._model.parameters()).device
        self._ids = _filled(ids, width, self._pad, left=False).to(device)
        self._lengths = torch.tensor([len(each) for each in ids], device=device)
        return self._scores()

    def step(self, tokens: Tensor) -> Tensor:
        """See Stepper."""
        if self._room is None or self._ids.shape[1] < self._room:
            self._ids = torch.cat([self._ids, torch.full_like(self._ids[:, :1], self._pad)], dim=1)
        # A row that is over may have no room left.
        self._ids.scatter_(1, self._lengths.clamp(max=self._ids.shape[1] - 1)[:, None], tokens[:, None])
        self._lengths = (self._lengths + 1).clamp(max=self._ids.shape[1])
        return self._scores()

    def _scores(self) -> Tensor:
        found: Any = self._model(self._ids, **self._options)
        scores: Tensor = found if isinstance(found, Tensor) else found.logits
        return scores[torch.arange(len(scores), device=scores.device), self._lengths - 1]


def _filled(rows: Sequence[Ids], width: int, pad: int, *, left: bool) -> Tensor:
    """Rows of ids as [B, width]."""
    filled = np.full((len(rows), width), pad, dtype=np.int64)
    for place, row in enumerate(rows):
        start = width - len(row) if left else 0
        filled[place, start : start + len(row)] = row
    return torch.from_numpy(filled)
