"""Causal models of two layers with large random weights, and what transformers' own generation makes of prompts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import nn

from drumline.data.tokenizers import ByteTokenizer, Ids
from drumline.infer.decoding import Prompt

VOCABULARY, ROOM, PAD = 64, 96, 0
ENDS = (5, 7, 11)
KINDS = ("llama", "gpt2", "sliding", "mixed", "gpt_oss", "experts")
"""Rotary and learned positions; sliding windows everywhere and in every other layer; mixtures of experts."""
WINDOW = 6

_SHAPE = {
    **{"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": ROOM},
    **{"pad_token_id": PAD, "eos_token_id": None, "bos_token_id": None},
}


@functools.cache
def causal_model(kind: str) -> nn.Module:
    """One of KINDS; the same one each time."""
    experts = {"head_dim": 8, "num_experts_per_tok": 2}
    layers = ["sliding_attention", "full_attention"]
    made: Any
    if kind == "llama":
        made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SHAPE))
    elif kind == "gpt2":
        shape = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": ROOM}
        made = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, bos_token_id=None, eos_token_id=None))
    elif kind == "sliding":
        made = transformers.MistralForCausalLM(transformers.MistralConfig(**_SHAPE, sliding_window=WINDOW))
    elif kind == "mixed":
        config = transformers.Gemma3TextConfig(**_SHAPE, head_dim=8, sliding_window=WINDOW, layer_types=layers)
        made = transformers.Gemma3ForCausalLM(config)
    elif kind == "gpt_oss":
        rope = {"rope_type": "default", "rope_theta": 10000.0}
        config = transformers.GptOssConfig(
            **_SHAPE, **experts, num_local_experts=4, sliding_window=WINDOW, rope_parameters=rope
        )
        made = transformers.GptOssForCausalLM(config)
    else:
        config = transformers.Qwen3MoeConfig(**_SHAPE, **experts, num_experts=4, moe_intermediate_size=16)
        made = transformers.Qwen3MoeForCausalLM(config)
    stream = torch.Generator().manual_seed(1)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3, generator=stream)
    model: nn.Module = made.eval()
    return model


def prompts_of(lengths: Sequence[int], limit: int, shared: int = 0) -> list[Prompt]:
    """Random prompts of these lengths, of which the first `shared` tokens are those of the others."""
    stream = np.random.default_rng(3)
    beginning = stream.integers(12, VOCABULARY, shared)
    made = [stream.integers(12, VOCABULARY, length) for length in lengths]
    return [
        Prompt(number, np.concatenate([beginning, ids[shared:]]).astype(np.int64), limit)
        for number, ids in enumerate(made)
    ]


def by_transformers(model: nn.Module, prompt: Prompt, **settings: Any) -> list[int]:
    """What model.generate makes of one prompt alone, up to the id that ends it, which is left out."""
    generator: Any = model
    given = torch.from_numpy(prompt.ids)[None]
    options = {"max_new_tokens": prompt.limit, "do_sample": False, "pad_token_id": PAD, "eos_token_id": list(ENDS)}
    found = generator.generate(given, attention_mask=torch.ones_like(given), **(options | settings))
    return [int(each) for each in found[0, len(prompt.ids) :] if int(each) not in ENDS]


class NumberTokenizer(ByteTokenizer):
    """Its text is the ids themselves: '12 13'."""

    pad_id = PAD

    def decode(self, ids: Sequence[int] | NDArray[np.int64]) -> str:
        """The ids with spaces between them."""
        return " ".join(str(int(each)) for each in ids)


def ids_in(text: str) -> list[int]:
    """What NumberTokenizer made a text of."""
    return [int(each) for each in text.split()]


def tokens(*ids: int) -> Ids:
    """Ids as prompts have them."""
    return np.array(ids, dtype=np.int64)
