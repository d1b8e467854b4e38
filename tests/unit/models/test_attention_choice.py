"""Kinds of attention that are right for a model, and packed losses that equal those of texts alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from drumline.config.model import HuggingFaceModel
from drumline.data.document_packing import PackedBatch, PackedTexts, pack
from drumline.data.token_rows import Learned, Row, shifted_row
from drumline.errors import ConfigError
from drumline.models.attention_choice import (
    Attention,
    can_keep_apart,
    candidates,
    is_right,
    packing_of,
    set_attention,
)
from drumline.models.attention_varlen import VARLEN

SIZES: dict[str, Any] = {"vocab_size": 97, "num_hidden_layers": 2, "num_attention_heads": 4, "use_cache": False}
CONTEXT = 32


def llama(**changes: Any) -> nn.Module:
    sizes = {**SIZES, "hidden_size": 32, "intermediate_size": 64, "num_key_value_heads": 2, **changes}
    model: nn.Module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    return model


def gpt2() -> nn.Module:
    quiet = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model: nn.Module = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=32, n_positions=64, **SIZES, **quiet, **ends)
    )
    return model


def qwen() -> nn.Module:
    sizes = {**SIZES, "hidden_size": 32, "intermediate_size": 64, "num_key_value_heads": 2}
    model: nn.Module = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes))
    return model


def opt() -> nn.Module:
    """It makes its mask without a look at positions."""
    sizes = {**SIZES, "hidden_size": 32, "ffn_dim": 64, "word_embed_proj_dim": 32}
    model: nn.Module = transformers.OPTForCausalLM(transformers.OPTConfig(**sizes))
    return model


def bloom() -> nn.Module:
    """Its positions come of the mask alone, so that texts of a row cannot begin anew."""
    sizes = {"vocab_size": 97, "n_layer": 2, "n_head": 4, "use_cache": False}
    model: nn.Module = transformers.BloomForCausalLM(transformers.BloomConfig(hidden_size=32, **sizes))
    return model


def gemma2() -> nn.Module:
    sizes = {**SIZES, "hidden_size": 32, "intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 8}
    model: nn.Module = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**sizes))
    return model


MODELS: list[Callable[[], nn.Module]] = [llama, gpt2, qwen]


class Texts:
    """Random texts as rows, with lengths."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self.lengths = generator.integers(2, 30, 12)
        self._ids = [generator.integers(1, 97, length) for length in self.lengths]
        self._learned = [generator.random(length) < 0.7 for length in self.lengths]

    def __len__(self) -> int:
        return len(self.lengths)

    def tokens(self, index: int) -> tuple[Any, Learned]:
        return self._ids[index], self._learned[index]

    def __getitem__(self, index: int) -> Row:
        return shifted_row(*self.tokens(index))


def summed(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    labels = batch.pop("labels")
    logits = model(**batch).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("attention", ["varlen", "sdpa", "eager"])
def test_packed_loss_and_gradients_are_those_of_texts_alone(
    make: Callable[[], nn.Module], attention: Attention
) -> None:
    torch.manual_seed(0)
    model, texts = make().train(), Texts()
    alone = sum(summed(model, {name: value[None] for name, value in texts[i].items()}) for i in range(len(texts)))
    assert isinstance(alone, Tensor)
    wanted = torch.autograd.grad(alone, list(model.parameters()))
    set_attention(model, attention)
    rows = PackedTexts(texts, pack(texts.lengths, CONTEXT))  # type: ignore[arg-type]
    assert len(rows) < 8
    loss = summed(model, PackedBatch(3.0)([rows[i] for i in range(len(rows))]))
    assert abs(loss - alone) <= 1e-5 * alone
    largest = max(float(gradient.abs().max()) for gradient in wanted)
    for gradient, other in zip(torch.autograd.grad(loss, list(model.parameters())), wanted, strict=True):
        assert (gradient - other).abs().max() <= 1e-5 * largest


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("attention", ["varlen", "sdpa"])
def test_kinds_that_keep_texts_apart(make: Callable[[], nn.Module], attention: Attention) -> None:
    model = make()
    before, weights = torch.get_rng_state(), [p.clone() for p in model.parameters()]
    assert can_keep_apart(model, attention)
    assert is_right(model, attention, packed=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), weights, strict=True))
    assert model.config._attn_implementation == "sdpa"  # type: ignore[union-attr]


def test_a_model_without_values_will_do() -> None:
    with torch.device("meta"):
        assert can_keep_apart(llama(hidden_size=4096, intermediate_size=11008, num_attention_heads=32), "varlen")


def test_a_cache_that_hides_positions_is_noticed() -> None:
    model = llama(use_cache=True)
    assert not can_keep_apart(model, "sdpa")
    assert can_keep_apart(model, "varlen")


def test_models_that_mix_texts_are_not_packed() -> None:
    model, config = bloom(), HuggingFaceModel(path="folder")
    assert not any(can_keep_apart(model, name) for name in ("sdpa", "varlen", "eager"))
    packing = packing_of(model, config, "auto")
    assert not packing.packed
    assert "a BloomForCausalLM would mix the texts of a row" in packing.reason
    with pytest.raises(ConfigError, match=r"data\.packing is packed, and with any attention"):
        packing_of(model, config, "packed")


def test_a_model_that_needs_starts_to_keep_texts_apart() -> None:
    model = opt()
    assert not can_keep_apart(model, "sdpa")
    assert packing_of(model, HuggingFaceModel(path="folder"), "auto").packed
    assert model.config._attn_implementation == VARLEN  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="sdpa attention a OPTForCausalLM would mix"):
        packing_of(model, HuggingFaceModel(path="folder", attention="sdpa"), "packed")


def test_encoders_have_no_texts_to_keep_apart() -> None:
    sizes = {**SIZES, "hidden_size": 32, "intermediate_size": 64}
    model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes))
    assert candidates(model, HuggingFaceModel(path="folder"), packed=False) == []
    assert packing_of(model, HuggingFaceModel(path="folder"), "auto").packed is False
    assert model.config._attn_implementation == "sdpa"


def test_packing_sets_an_attention_that_fits() -> None:
    model = llama()
    assert packing_of(model, HuggingFaceModel(path="folder"), "auto").packed
    assert model.config._attn_implementation == "sdpa"  # type: ignore[union-attr]
    packing = packing_of(model, HuggingFaceModel(path="folder", attention="varlen"), "packed")
    assert (packing.packed, packing.reason) == (True, "data.packing is packed")
    assert model.config._attn_implementation == VARLEN  # type: ignore[union-attr]
    assert not packing_of(model, HuggingFaceModel(path="folder", attention="eager"), "none").packed
    assert model.config._attn_implementation == "eager"  # type: ignore[union-attr]


def test_what_no_quick_attention_has_leaves_the_slow_one() -> None:
    assert candidates(gemma2(), HuggingFaceModel(path="folder"), packed=True) == ["eager"]
