"""Attention of single tokens, beside torch's own."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from drumline.infer.step_attention import NAME, attend, for_steps
from tests.unit.infer.tiny_causal import causal_model

ROWS, HEADS, COLUMNS, WIDTH = 3, 8, 11, 4


def by_torch(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """With heads of keys and values repeated; [B, T, H, W]."""
    keys, values = (each.repeat_interleave(HEADS // each.shape[1], 1) for each in (key, value))
    found: Tensor = torch.nn.functional.scaled_dot_product_attention(query, keys, values, **options)
    return found.transpose(1, 2)


def made(groups: int, tokens: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(groups)
    shapes = (ROWS, HEADS, tokens, WIDTH), (ROWS, groups, COLUMNS, WIDTH), (ROWS, groups, COLUMNS, WIDTH)
    query, key, value = (torch.randn(shape, generator=draw) for shape in shapes)
    return query, key, value


def masks() -> list[Tensor | None]:
    counts = torch.arange(COLUMNS) < torch.tensor([11, 1, 6])[:, None]
    own = counts[:, None, None, :]
    added = torch.zeros(own.shape).masked_fill(~own, torch.finfo(torch.float32).min)
    return [None, own, own.expand(-1, HEADS, -1, -1), added]


@pytest.mark.parametrize("groups", [8, 2, 1])
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_it_is_torchs_attention_with_repeated_heads(groups: int, number: int, scaling: float | None) -> None:
    query, key, value = made(groups)
    mask = masks()[number]
    found, _ = attend(None, query, key, value, mask, scaling=scaling)
    torch.testing.assert_close(found, by_torch(query, key, value, attn_mask=mask, scale=scaling), rtol=1e-5, atol=1e-6)


def test_a_cache_that_is_larger_than_what_is_read() -> None:
    """Keys and values are the first columns of larger tensors, and no copies of them."""
    query, key, value = made(2)
    keys, values = (torch.cat([each, torch.full_like(each, torch.inf)], 2)[:, :, :COLUMNS] for each in (key, value))
    found, _ = attend(None, query, keys, values, None)
    torch.testing.assert_close(found, attend(None, query, key, value, None)[0])


def test_several_tokens_are_transformers_own_business() -> None:
    query, key, value = made(2, tokens=COLUMNS)
    module = SimpleNamespace(num_key_value_groups=HEADS // 2, is_causal=True)
    found, _ = attend(module, query, key, value, None)
    torch.testing.assert_close(found, by_torch(query, key, value, is_causal=True), rtol=1e-5, atol=1e-6)


def test_other_parts_of_a_model_keep_their_attention() -> None:
    """transformers hands what is set on a configuration down to its parts, of which each may have its own."""
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    text = {"vocab_size": 32, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    text |= {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8}
    config = transformers.Gemma3Config(
        text_config=text, vision_config={**vision, "image_size": 8, "patch_size": 4}, mm_tokens_per_image=4
    )
    model: Any = transformers.Gemma3ForConditionalGeneration(config)
    model.config._attn_implementation = {"": "sdpa", "text_config": "sdpa", "vision_config": "eager"}
    with for_steps(model):
        assert model.config.text_config._attn_implementation == NAME
        assert model.config.vision_config._attn_implementation == "eager"
    assert model.config.text_config._attn_implementation == "sdpa"
    assert model.config.vision_config._attn_implementation == "eager"


def test_a_model_has_its_own_attention_again_afterwards() -> None:
    model: Any = copy.deepcopy(causal_model("llama"))
    with pytest.raises(ZeroDivisionError), for_steps(model):
        assert model.config._attn_implementation == NAME
        _ = 1 / 0
    assert model.config._attn_implementation == "sdpa"
    model.set_attn_implementation("eager")
    with for_steps(model):
        assert model.config._attn_implementation == "eager"
