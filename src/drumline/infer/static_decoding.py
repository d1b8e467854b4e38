"""Steps with a cache of fixed size: each does the same work at the same addresses, so that a GPU can replay it.

A step of a model of 8 billion parameters is about 700 kernels, which take longer to start one by one than to run. On
a CUDA device they are captured once for each size and replayed as one graph; elsewhere the same code runs as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from drumline.infer.causal import MASKED, Causal
from drumline.infer.cuda_graphs import Graphs
from drumline.infer.decoding import Padded, Prompt
from drumline.infer.prefix import PrefixCache

ROW_MULTIPLE = 8
COLUMN_MULTIPLE = 64
"""Sizes are rounded up to these, so that batches of about the same shape share what is captured for one."""
READ_MULTIPLE = 256
"""Of the columns as many are read as there are, rounded up to this: what is not written yet costs memory traffic."""
MOST_SIZES = 32
"""Sizes that are kept, since each one's graphs hold some MiB; the oldest goes first."""

_GROWING = {"DynamicLayer", "DynamicSlidingWindowLayer"}
_Pair = tuple[Tensor, Tensor]


def is_static(causal: Causal) -> bool:
    """Whether a model's cache can be held in tensors of fixed size: plain or sliding attention, on one device."""
    from transformers.cache_utils import StaticLayer

    kinds = {type(layer).__name__ for layer in causal.new_cache().layers}
    # Older releases of transformers have no counter on the device in it.
    counts = hasattr(StaticLayer(max_cache_len=1), "cumulative_length")
    takes_masks = causal.model.config._attn_implementation in MASKED
    # Behind what is written a tensor of fixed size has columns, which would count.
    is_plain = kinds <= _GROWING and not causal.keeps_state and not causal.counts_columns
    return causal.is_on_one_device and is_plain and counts and takes_masks


class Static(Padded):
    """Reads prompts as Padded does, and then copies their keys and values into tensors of fixed size."""

    def __init__(self, causal: Causal, pad: int, prefix: PrefixCache | None = None) -> None:
        super().__init__(causal, pad, prefix)
        self._storage: list[_Pair] = []
        self._scores: Tensor | None = None
        self._sizes: dict[tuple[int, int], _Held] = {}
        self._graphs = Graphs(causal.device)
        self._most = 0
        self._now: _Held | None = None

    def start(self, prompts: Sequence[Prompt | None], width: int, most: int) -> Tensor:
        """See Stepper."""
        self._most, self._now = most, None
        return super().start(prompts, width, most)

    def read(self, ids: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
        """Take the prompts in, and hold the cache ready for the steps."""
        scores = super().read(ids, mask, positions)
        rows = _round_up(len(ids), ROW_MULTIPLE)
        columns = _round_up(self.columns + self._most, COLUMN_MULTIPLE)
        grown, self.cache = self.cache, None
        self._now = self._held(rows, columns, grown, scores)
        self._now.load(grown, self.columns, self.mask)
        return scores

    def step(self, tokens: Tensor) -> Tensor:
        """See Stepper."""
        assert self._now is not None
        self.columns += 1
        scores = self._now.run(tokens, self.positions, self.columns)
        self.positions = self.positions + 1
        return scores

    def rehearse(self, prompts: Sequence[Prompt], width: int, most: int) -> None:
        """See Padded. From the second batch on, the tensors are there already while prompts are read."""
        self.start(prompts, width, most)
        super().rehearse(prompts, width, most)

    def fill(self, columns: int) -> None:
        """The cache has its full size already."""

    def release(self) -> None:
        """Give all memory back; it is taken anew when it is needed."""
        self.cache = self._now = self._scores = None
        for held in self._sizes.values():
            held.forget()
        self._sizes.clear()
        self._storage.clear()
        self._graphs.forget()

    def _held(self, rows: int, columns: int, grown: Any, like: Tensor) -> _Held:
        """like: scores, of any number of rows."""
        if (known := self._sizes.get((rows, columns))) is not None:
            return known
        scores = self._make_room(rows, columns, grown, like)
        if len(self._sizes) >= MOST_SIZES:
            self._sizes.pop(next(iter(self._sizes))).forget()
        parts = [
            (_part(keys, layer.keys, rows, columns), _part(values, layer.values, rows, columns))
            for (keys, values), layer in zip(self._storage, grown.layers, strict=True)
        ]
        held = self._sizes[rows, columns] = _Held(self._causal, parts, scores[:rows], self._graphs)
        return held

    def _make_room(self, rows: int, columns: int, grown: Any, like: Tensor) -> Tensor:
        """One tensor a layer for keys, one for values, and one for scores: each size uses the beginning. The last."""
        needed = [(_count(layer.keys, rows, columns), _count(layer.values, rows, columns)) for layer in grown.layers]
        is_enough = all(
            keys.numel() >= count_keys and values.numel() >= count_values
            for (keys, values), (count_keys, count_values) in zip(self._storage, needed, strict=False)
        )
        if self._scores is not None and len(self._scores) >= rows and is_enough:
            return self._scores
        # Graphs hold the old addresses. They and the old tensors go before the new ones are made.
        most = max(rows, 0 if self._scores is None else len(self._scores))
        self.release()
        for layer, (count_keys, count_values) in zip(grown.layers, needed, strict=True):
            self._storage.append((layer.keys.new_zeros(count_keys), layer.values.new_zeros(count_values)))
        # Of all sizes together: scores of a whole vocabulary for each would fill a GPU.
        self._scores = like.new_zeros(most, like.shape[1])
        return self._scores


class _Held:
    """What one size needs: its part of the storage, and the steps' inputs, which stay where they are."""

    def __init__(self, causal: Causal, parts: Sequence[_Pair], scores: Tensor, graphs: Graphs) -> None:
        """parts: keys and values of each layer, [rows, heads, columns, width]; scores: written to, [rows, V]."""
        keys, device = parts[0][0], causal.device
        rows, self._columns = keys.shape[0], keys.shape[2]
        self._causal, self._parts, self._scores, self._graphs = causal, parts, scores, graphs
        self._tokens = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self._positions = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        # Columns to come hold something of each row; until then causality hides them.
        self._mask = torch.ones(rows, self._columns, dtype=torch.bool, device=device)
        self._counters = torch.zeros(len(parts), dtype=torch.int64, device=device)
        self._steps: dict[int, Any] = {}

    def load(self, grown: Any, columns: int, mask: Tensor) -> None:
        """Take over what the prompts have left in a cache that grows."""
        self._counters.fill_(columns)
        self._mask.fill_(True)
        self._mask[: len(mask), : mask.shape[1]] = mask
        self._positions.zero_()
        # Of rows that this batch lacks: a mixture of experts computes its own rows' in other groups for other tokens.
        self._tokens.zero_()
        for part, layer in zip(self._parts, grown.layers, strict=True):
            for into, own in zip(part, (layer.keys, layer.values), strict=True):
                # What an earlier batch left there could be infinite, which no mask hides.
                into.zero_()
                # A sliding layer has kept the newest columns only.
                into[: own.shape[0], :, columns - own.shape[2] : columns] = own
            # Or prompts would be in memory twice until the last layer is copied.
            layer.keys = layer.values = None

    def run(self, tokens: Tensor, positions: Tensor, columns: int) -> Tensor:
        """Scores [B, V] of the token after these [B], the last of which is in the last of so many columns."""
        rows = len(tokens)
        self._tokens[:rows, 0] = tokens
        self._positions[:rows, 0] = positions
        read = min(self._columns, _round_up(columns, READ_MULTIPLE))
        if read not in self._steps:
            self._steps[read] = self._step(read)
        self._steps[read]()
        # A copy: the next step writes to where these stand.
        return self._scores[:rows].clone()

    def forget(self) -> None:
        """Let the steps go, which hold on to this in turn: else it would wait for the next collection of garbage."""
        self._steps.clear()

    def _step(self, columns: int) -> Any:
        """A step over the first columns, as something to call."""
        from transformers.cache_utils import Cache, StaticLayer

        layers = []
        for number, (keys, values) in enumerate(self._parts):
            # Sliding windows are a matter of the mask here: a layer that rolls would need another graph once full.
            layer = StaticLayer(max_cache_len=columns)
            layer.keys, layer.values = keys[:, :, :columns], values[:, :, :columns]
            layer.cumulative_length = self._counters[number]
            layer.device, layer.batch_size, layer.is_initialized = keys.device, len(keys), True
            layers.append(layer)
        cache, mask = Cache(layers=layers), self._mask[:, :columns]

        def step() -> None:
            self._scores.copy_(self._causal(self._tokens, mask, self._positions, cache))

        before = self._counters.clone()
        # A step that is tried writes to the column that the real one writes to next.
        return self._graphs.captured(step, lambda: self._counters.copy_(before))


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _count(like: Tensor, rows: int, columns: int) -> int:
    return rows * like.shape[1] * columns * like.shape[3]


def _part(storage: Tensor, like: Tensor, rows: int, columns: int) -> Tensor:
    """The beginning of a layer's storage as [rows, heads, columns, width]."""
    return storage[: _count(like, rows, columns)].view(rows, like.shape[1], columns, like.shape[3])
