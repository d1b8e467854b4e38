"""Rows for added tokens, in models of several shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from drumline.models.vocabulary import grow_embeddings, untrained

OLD, IDS = 70, 72


def llama(*, tied: bool) -> Any:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=OLD,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            tie_word_embeddings=tied,
        )
    )


def bert() -> Any:
    """Its output layer has a bias, and is tied."""
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=OLD, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
    )


def t5() -> Any:
    """One table for encoder, decoder and output."""
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=OLD, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    )


SHAPES: list[Callable[[], Any]] = [lambda: llama(tied=False), lambda: llama(tied=True), bert, t5]


@pytest.mark.parametrize("make", SHAPES)
def test_new_rows_are_the_mean_and_all_else_stays(make: Callable[[], Any]) -> None:
    torch.manual_seed(1)
    model = make().eval()
    if (bias := getattr(model.get_output_embeddings(), "bias", None)) is not None:
        torch.nn.init.normal_(bias)
    ids = torch.arange(6)[None]
    given = {"input_ids": ids} | (
        {"decoder_input_ids": ids} if isinstance(model, transformers.T5PreTrainedModel) else {}
    )
    before, state = model(**given).logits, torch.random.get_rng_state()
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    grow_embeddings(model, IDS)
    assert torch.equal(torch.random.get_rng_state(), state)
    after = model(**given).logits
    assert after.shape[-1] == model.config.vocab_size == 128
    torch.testing.assert_close(after[..., :OLD], before)
    torch.testing.assert_close(after[..., OLD:], before.mean(-1, keepdim=True).expand_as(after[..., OLD:]))
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
    assert len({id(p) for p in model.parameters()}) == len(list(model.parameters(recurse=True)))
    assert model.get_input_embeddings().weight.requires_grad


def test_it_grows_on_the_meta_device_as_it_does_elsewhere() -> None:
    with torch.device("meta"):
        shapeless = llama(tied=True)
    real = llama(tied=True)
    for model in (shapeless, real):
        grow_embeddings(model, IDS)
    assert shapeless.lm_head.weight is shapeless.model.embed_tokens.weight
    expected = {name: value.shape for name, value in real.state_dict().items()}
    assert {name: value.shape for name, value in shapeless.state_dict().items()} == expected
    assert all(p.is_meta for p in shapeless.parameters())


def test_what_train_also_must_name() -> None:
    assert untrained(llama(tied=False), []) == ["model.embed_tokens", "lm_head"]
    assert untrained(llama(tied=False), ["lm_head", "model.embed_tokens"]) == []
    assert untrained(llama(tied=True), []) == ["model.embed_tokens"]
    assert untrained(llama(tied=True), ["tokens"]) == ["model.embed_tokens"]
