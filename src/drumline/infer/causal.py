"""How a causal language model of transformers is asked for its next token, whatever its forward calls things."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from drumline.infer import step_attention
from drumline.infer.steady_room import steady_room
from drumline.models.huggingface import text_config

MASKED = ("sdpa", "eager")
"""Kinds of attention that take any mask over the columns of the cache."""


_GROWING = {"DynamicLayer", "DynamicSlidingWindowLayer"}


def takes_cache(model: Any) -> bool:
    """Whether a model goes on from keys and values that it is given; others keep something else, or nothing."""
    return not {"cache", "past_key_values"}.isdisjoint(inspect.signature(model.forward).parameters)


def counts_columns(config: Any) -> bool:
    """Whether a model takes the distance of two columns for that of two tokens, as GPT-Neo's local layers do."""
    return "local" in (getattr(config, "attention_layers", None) or ())


class Causal:
    """One model, and what can be done with its cache."""

    def __init__(self, model: Any) -> None:
        """model: one that `takes_cache`."""
        self.model = model
        accepted = inspect.signature(model.forward).parameters
        # transformers renames it in 5.24 and warns of the old name.
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self._takes_positions = "position_ids" in accepted
        self._keeps_last = "logits_to_keep" in accepted
        self.room = steady_room(model)
        """Most tokens of a row; None where the model does not say."""
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.is_on_one_device = len({parameter.device for parameter in model.parameters()}) == 1
        kinds = {type(layer).__name__ for layer in self.new_cache().layers}
        is_stateful = bool(getattr(model, "_is_stateful", False))
        self.hides_state = is_stateful and kinds <= _GROWING
        """Whether the state is in the model's own layers, and goes over from one text to the next."""
        self.keeps_state = is_stateful or not kinds <= _GROWING
        """Whether some layer keeps a state, which tokens at its left may have changed, instead of columns."""
        self._has_columns = kinds != {"LinearAttentionLayer"}
        self.counts_columns = counts_columns(text_config(model))
        self.allows_gaps = (
            kinds == {"DynamicLayer"}
            and not self.keeps_state
            and not self.counts_columns
            and self._takes_positions
            and not getattr(text_config(model), "alibi", False)
            and model.config._attn_implementation in MASKED
        )
        """Whether columns of the cache may stay unused between those of a row: not where the distance of two columns
        is taken for that of two tokens, as by sliding windows, nor where a layer keeps a state instead of columns."""

    def new_cache(self) -> Any:
        """An empty cache that grows, with the layers that the model needs."""
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config)

    def __call__(self, ids: Tensor, mask: Tensor | None, positions: Tensor, cache: Any) -> Tensor:
        """Scores of the token after the last column, [B, V], for ids and positions [B, T] and a mask [B, columns].

        The keys and values of the T columns are added to the cache.
        """
        if not self._has_columns and ids.shape[1] == 1:
            mask = None  # a state alone has no columns to cover, and transformers' models take the mask for the token's
        options: dict[str, Any] = {self._cache_name: cache, "use_cache": True}
        if self._takes_positions:
            # A row that is over is computed on with the others; its positions must stay within the model's table.
            options["position_ids"] = positions if self.room is None else positions.clamp(max=self.room - 1)
        if self._keeps_last:
            options["logits_to_keep"] = 1
        with step_attention.for_steps(self.model) if ids.shape[1] == 1 else nullcontext():
            logits: Tensor = self.model(input_ids=ids, attention_mask=mask, **options).logits[:, -1]
        return logits.to(self.device)
