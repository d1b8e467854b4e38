"""How likely a causal model finds given tokens, without all logits in memory at once."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drumline.data.tokenizers import Ids
from drumline.errors import ConfigError
from drumline.infer.causal import counts_columns
from drumline.infer.steady_room import room_note, steady_room
from drumline.infer.vocabulary import vocabulary_of
from drumline.models.causal_head import find_tail
from drumline.models.chunked_loss import chunks
from drumline.models.huggingface import head_of, is_pretrained, text_config
from drumline.models.token_losses import Tail, capped

MASKED = ("sdpa", "eager")
"""Kinds of attention that take any mask."""
ATTENDING = {"full_attention", "sliding_attention"}
"""Kinds of layers whose keys and values can be kept for each token."""


class CausalLikelihood:
    """A causal model as states (what its output layer reads, or where that cannot be told, logits) and what they say.

    Rows are padded at the right, and nothing covers the padding where there is no cache: no token sees a later one.
    """

    def __init__(self, model: nn.Module) -> None:
        """Raise ConfigError for a model of transformers that is no causal one."""
        self._model: Any = model
        self._tail: Tail | None = None
        self.window: int | None = None
        """How many tokens a token of a sliding layer sees, with itself."""
        self.sliding: tuple[bool, ...] = ()
        """Kinds of layers by whether they slide: what `masks` makes masks for."""
        self.can_keep = False
        """Whether keys and values of tokens can be kept, and later tokens be told by a mask which of them they see."""
        first = next(model.parameters())
        self.device: torch.device = first.device
        self.dtype: torch.dtype = first.dtype
        self.room = steady_room(model)
        """Most tokens of a row; None where the model does not say."""
        self.room_note = room_note(model)
        """Why it is less than the model's, for a row's problem; often empty."""
        self.vocabulary = vocabulary_of(model)
        """How many tokens the model knows; None where it does not say."""
        if is_pretrained(model):
            _check_causal(model)
            self._find_ways()

    def _find_ways(self) -> None:
        self.device = self._model.get_input_embeddings().weight.device
        self.dtype = self._model.dtype
        try:
            self._tail = find_tail(self._model)
        except ConfigError:
            self._tail = None  # all logits then, as the model itself gives them
        config = text_config(self._model)
        accepted = inspect.signature(self._body.forward).parameters
        # transformers renames it in 5.24 and warns of the old name.
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        kinds = getattr(config, "layer_types", None)
        self.window = getattr(config, "sliding_window", None)
        if kinds is None:
            self.sliding = (self.window is not None,)
        else:
            self.sliding = tuple(dict.fromkeys(kind == "sliding_attention" for kind in kinds))
        self.can_keep = (
            set(kinds or ()) <= ATTENDING
            and (self.window is not None or True not in self.sliding)
            and {self._cache_name, "position_ids", "attention_mask"} <= set(accepted)
            and not getattr(config, "alibi", False)
            and not counts_columns(config)
            and not getattr(self._model, "_is_stateful", False)
            and self._model.config._attn_implementation in MASKED
        )

    @property
    def _body(self) -> Any:
        return self._model if self._tail is None else self._model.base_model

    def new_cache(self) -> Any:
        """A cache that keeps the keys and values of all tokens, in sliding layers too."""
        from transformers import DynamicCache

        return DynamicCache()

    def states(
        self, ids: Tensor, cache: Any = None, masks: Sequence[Tensor] = (), positions: Tensor | None = None
    ) -> Tensor:
        """States of ids [B, T], [B, T, width], on the device of the last layer; keys and values go into the cache.

        masks: one for each of `sliding`, [B, 1, T, columns of the cache and T], added to the attention's scores; none:
        each token sees all before it.
        """
        if not is_pretrained(self._model):
            logits: Tensor = self._model(ids)
            return logits
        options: dict[str, Any] = {"use_cache": cache is not None}
        if cache is not None:
            options[self._cache_name] = cache
        if masks:
            names = ["sliding_attention" if slides else "full_attention" for slides in self.sliding]
            mixed = dict(zip(names, masks, strict=True))
            options["attention_mask"] = masks[0] if len(masks) == 1 else mixed
            options["position_ids"] = positions
        found = self._body(input_ids=ids, **options)
        states: Tensor = found.logits if self._tail is None else found[0]
        return states

    def log_likelihoods(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Of tokens [N, K], each after the text that a state of [N, width] ends: [N, K], at least in float32, nats."""
        vocabulary = states.shape[-1] if self._tail is None else int(self._output.weight.shape[0])
        found = []
        for rows, wanted in chunks(states, tokens, vocabulary):
            logits = self._logits(rows)
            found.append(logits.gather(1, wanted.to(logits.device)) - logits.logsumexp(-1, keepdim=True))
        return torch.cat(found)

    @property
    def _output(self) -> Any:
        return self._model.get_output_embeddings()

    def _logits(self, rows: Tensor) -> Tensor:
        products = rows if self._tail is None else self._output(rows)
        wide = products.to(torch.promote_types(products.dtype, torch.float32))
        return wide if self._tail is None else capped(wide, self._tail)

    def padded(self, rows: Sequence[Ids | None], width: int) -> Tensor:
        """Ids of rows, [B, width], with zeros behind them and in place of rows that are not there."""
        table = np.zeros((len(rows), width), dtype=np.int64)
        for number, ids in enumerate(rows):
            if ids is not None:
                table[number, : len(ids)] = ids
        return torch.from_numpy(table).to(self.device)


def _check_causal(model: Any) -> None:
    causal = head_of(model) in ("causal", None) and model.get_output_embeddings() is not None
    if not causal or getattr(model.config, "is_encoder_decoder", False):
        raise ConfigError(
            f"a {type(model).__name__} does not say how likely a text's next token is",
            "give a causal language model, or another task",
        )
