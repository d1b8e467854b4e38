from __future__ import annotations

from typing import Any

import pytest
import transformers
from torch import nn

from drumline.config.model import DecoderModel
from drumline.models.decoder import decoder_from_config
from drumline.models.flops import training_flops_per_unit

LLAMA: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
# Queries and output 16 x 16, keys and values 16 x 8 each, three MLP matrices, two norms; then the last norm.
LLAMA_BODY = 2 * (2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 32 + 2 * 16) + 16


@pytest.mark.parametrize("tied", [True, False])
def test_a_decoder_counts_its_output_matrix_once_and_no_lookup(tied: bool) -> None:
    config = DecoderModel(
        style="llama", num_layers=2, num_heads=4, num_kv_heads=2, width=16, mlp_width=32, tie_embeddings=tied
    )
    model = decoder_from_config(config, vocab_size=64, context=32)
    assert training_flops_per_unit(model) == 6 * (LLAMA_BODY + 64 * 16) + 12 * 2 * 16 * 32
    assert training_flops_per_unit(model, context=8) == 6 * (LLAMA_BODY + 64 * 16) + 12 * 2 * 16 * 8


def test_gpt2_is_counted_alike_in_both_forms() -> None:
    ours = decoder_from_config(DecoderModel(num_layers=2, num_heads=2, width=16), vocab_size=64, context=32)
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    theirs = transformers.GPT2LMHeadModel(config)
    expected = 6 * (sum(weight.numel() for weight in theirs.parameters()) - 32 * 16) + 12 * 2 * 16 * 32
    assert training_flops_per_unit(ours) == training_flops_per_unit(theirs) == expected


@pytest.mark.parametrize("tied", [True, False])
def test_rotary_models_need_to_be_told_the_rows_length(tied: bool) -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, tie_word_embeddings=tied))
    assert training_flops_per_unit(model) is None
    assert training_flops_per_unit(model, context=8) == 6 * (LLAMA_BODY + 40 * 16) + 12 * 2 * 16 * 8


def test_heads_wider_than_their_share_of_the_stream_are_counted() -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, head_dim=8, tie_word_embeddings=True))
    body = LLAMA_BODY + 2 * (2 * 16 * 16 + 2 * 16 * 8)
    assert training_flops_per_unit(model, context=8) == 6 * (body + 40 * 16) + 12 * 2 * 32 * 8


def test_what_is_not_known_is_not_guessed() -> None:
    mixture = transformers.MixtralForCausalLM(transformers.MixtralConfig(**LLAMA, num_local_experts=2))
    classifier = transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**LLAMA))
    for model in (mixture, classifier, nn.Linear(2, 2)):
        assert training_flops_per_unit(model, context=8) is None
