"""More rows for a transformers model's embedding and output layer, for tokens that were added to its tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from drumline.models.huggingface import text_config

ROWS = 64
"""Sizes are rounded up to a multiple of it: whole tiles for matrix products (NVIDIA's guide to their performance)."""

logger = logging.getLogger("drumline")


@torch.no_grad()
def grow_embeddings(model: Any, num_ids: int) -> None:
    """Give embedding and output layer rows for `num_ids` ids, rounded up to ROWS; tied ones stay tied.

    New rows, and new entries of the output's bias, are the mean of the old ones, so that the new tokens begin about as
    likely as the old ones are on average (Hewitt 2021, Initializing New Word Embeddings). The configuration follows.
    Works on the meta device too, and leaves random streams as they were.
    """
    before = int(text_config(model).vocab_size)
    with torch.random.fork_rng(devices=[]):
        model.resize_token_embeddings(num_ids, pad_to_multiple_of=ROWS, mean_resizing=False)
    changed: list[nn.Parameter] = []
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        for name in ("weight", "bias"):
            p = getattr(layer, name, None)
            if p is None or p.is_meta or len(p) <= before or any(p is other for other in changed):
                continue
            p[before:] = p[:before].float().mean(0).to(p.dtype)
            changed.append(p)
    after = int(text_config(model).vocab_size)
    logger.warning(
        "the tokenizer has %d ids and the model %d: it grows to %d, the new rows being the mean of the old ones",
        num_ids,
        before,
        after,
    )


def untrained(model: Any, train_also: Sequence[str]) -> list[str]:
    """Names of the embedding and of the output layer, where it is not tied to it, that none of these ends cover."""
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    tied = output is not None and output.weight is embedding.weight
    wanted = [layer for layer in (embedding, None if tied else output) if layer is not None]
    names = [next(name for name, module in model.named_modules() if module is layer) for layer in wanted]
    return [name for name in names if not any(name == end or name.endswith(f".{end}") for end in train_also)]
