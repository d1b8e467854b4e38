"""Attention of one new token a row, whose cost is to read the cache once.

Under a mask none of torch's fused kernels takes fewer heads of keys than of queries on a CUDA device, so transformers
repeats keys and values for them: four times the cache written and read again, in every layer of every step. Here the
queries that share a head are the rows of one small matrix. Llama 8B's shape, 90 rows over 1,085 columns on an H200:
13.9 ms a step, where the fused kernels take 79.4 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from drumline.models.huggingface import text_config

NAME = "drumline_steps"
"""By which transformers knows it."""


@contextmanager
def for_steps(model: Any) -> Iterator[None]:
    """Let the model's layers compute single tokens so; what is more than that, and other attention, stays as it was."""
    config = text_config(model)  # of a model with images, the other parts keep what they have
    if config._attn_implementation != "sdpa":
        yield
        return
    _register()
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = "sdpa"


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Of queries [B, H, T, W] over keys and values [B, G, columns, W]: [B, T, H, W], as transformers wants it.

    attention_mask: true where a column counts, or what is added to the scores, [B or 1, H or 1, T, columns].
    options: scaling, of the scores (W ** -0.5), and others of transformers' attention.
    """
    is_exact = query.dtype == torch.float32 or query.is_cuda
    if query.shape[2] != 1 or options.get("position_bias") is not None or not is_exact:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        found: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return found
    rows, heads, _, width = query.shape
    groups, columns = key.shape[1:3]
    scaling = options.get("scaling")
    queries = query * (width**-0.5 if scaling is None else scaling)
    queries = queries.reshape(rows * groups, heads // groups, width)
    keys = key.reshape(rows * groups, columns, width).transpose(1, 2)
    values = value.reshape(rows * groups, columns, -1)
    # In float32, as the fused kernels have them.
    is_single = query.dtype == torch.float32
    scores = torch.bmm(queries, keys) if is_single else torch.bmm(queries, keys, torch.float32)
    scores = scores.view(rows, heads, columns)
    if attention_mask is not None:
        mask = attention_mask[:, :, 0, :columns]
        scores = scores.masked_fill_(~mask, -torch.inf) if mask.dtype == torch.bool else scores.add_(mask)
    shares = scores.softmax(-1).to(value.dtype).view(rows * groups, heads // groups, columns)
    return torch.bmm(shares, values).view(rows, 1, heads, -1), None


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
