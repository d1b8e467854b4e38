"""transformers' continuous batching: rows of a planned batch come and go by themselves, in pages of one cache.

Its batches are made as rows end, so only the tokens of float32 are promised to be those of the other engines, ties
aside. It always takes the likeliest token here: its random stream is one for all rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from drumline.infer.causal import Causal
from drumline.infer.decoding import Prompt
from drumline.infer.endings import Endings, Written

PAGE_TOKENS = 256
"""transformers' own."""


def write_continuously(causal: Causal, pad: int, prompts: Sequence[Prompt], endings: Endings) -> list[Written]:
    """Answers of the prompts, in their order. Raises RuntimeError where a row fails."""
    found: dict[int, Written] = {}
    by_limit: dict[int, list[int]] = defaultdict(list)
    for place, prompt in enumerate(prompts):
        by_limit[prompt.limit].append(place)
    for limit, places in by_limit.items():
        outputs = _generate(causal, pad, [prompts[place].ids.tolist() for place in places], limit, endings)
        for place, output in zip(places, outputs, strict=True):
            if output.error is not None:
                raise RuntimeError(f"continuous batching: {output.error}")
            written = endings.judge(output.generated_tokens, limit)
            if written is None:
                raise RuntimeError(f"continuous batching ended after {len(output.generated_tokens)} of {limit} tokens")
            found[place] = written
    return [found[place] for place in range(len(prompts))]


def _generate(causal: Causal, pad: int, inputs: list[list[int]], limit: int, endings: Endings) -> list[Any]:
    from transformers import ContinuousBatchingConfig, GenerationConfig

    settings = GenerationConfig(
        max_new_tokens=limit, do_sample=False, eos_token_id=list(endings.ends) or -1, pad_token_id=pad
    )
    options: dict[str, Any] = {}
    if causal.device.type == "cpu":
        # Else it takes nearly all of the machine's memory.
        pages = sum(-(-(len(ids) + limit) // PAGE_TOKENS) + 1 for ids in inputs)
        options = {"num_blocks": pages, "max_batch_tokens": max(256, *map(len, inputs))}
    attention = causal.model.config._attn_implementation
    try:
        with torch.inference_mode(False):
            outputs = causal.model.generate_batch(
                inputs=inputs,
                generation_config=settings,
                continuous_batching_config=ContinuousBatchingConfig(**options),
                progress_bar=False,
            )
    finally:
        if causal.model.config._attn_implementation != attention:
            causal.model.set_attn_implementation(attention)
    if len(outputs) != len(inputs):
        raise RuntimeError(f"continuous batching gave {len(outputs)} of {len(inputs)} answers")
    return list(outputs.values())
