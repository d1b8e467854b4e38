"""The mask that a model gets is one that it understands, and changes nothing for who stays in a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from drumline.infer.padding_masks import MaskedBody, mask_form
from drumline.infer.text_inputs import PaddedIds

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 1, "initializer_range": 0.3},
}
MODERN = {"local_attention": 4, "global_attn_every_n_layers": 2, "reference_compile": False}
KINDS = {
    "bert": (transformers.BertConfig, {}, "broadcast"),
    "roberta": (transformers.RobertaConfig, {"type_vocab_size": 1}, "broadcast"),
    "electra": (transformers.ElectraConfig, {"embedding_size": 32}, "broadcast"),
    "modern_bert": (transformers.ModernBertConfig, MODERN, "rows"),
    "llama": (transformers.LlamaConfig, {"num_key_value_heads": 2}, "none"),
    "mistral": (transformers.MistralConfig, {"num_key_value_heads": 2, "sliding_window": 4}, "none"),
    "gemma": (transformers.Gemma3TextConfig, {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4}, "none"),
    "gemma_both_ways": (
        transformers.Gemma3TextConfig,
        {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4, "use_bidirectional_attention": True},
        "rows",
    ),
}


def model_of(kind: str, **settings: Any) -> nn.Module:
    config, own, _ = KINDS[kind]
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config(**{**SIZES, **own}), **settings)
    return model.eval().requires_grad_(False)  # type: ignore[no-any-return]


def batch_of(rows: list[list[int]], width: int) -> PaddedIds:
    ids = torch.tensor([row + [1] * (width - len(row)) for row in rows])
    return PaddedIds(ids, torch.tensor([len(row) for row in rows]), None)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_no_state(kind: str) -> None:
    model = model_of(kind)
    body = MaskedBody(model, CPU)
    assert body.form == KINDS[kind][2]
    rows = [[5, 9, 33, 4, 60, 21, 8, 13, 40], [7, 31], [12, 50, 6, 44]]
    states = body(batch_of(rows, 12)).last_hidden_state
    for row, found in zip(rows, states, strict=True):
        alone = model(input_ids=torch.tensor([row])).last_hidden_state[0]
        assert found[: len(row)] == pytest.approx(alone, abs=1e-4)


def test_an_attention_that_adds_its_mask_gets_no_true_and_false() -> None:
    assert mask_form(model_of("bert", attn_implementation="eager"), CPU) == "rows"


def test_a_model_that_cannot_be_tried_gets_rows() -> None:
    class Strange(nn.Module):
        is_causal = True
        config = transformers.BertConfig(vocab_size=8)

        def forward(self, **given: Any) -> None:
            raise KeyError("mask")

    strange = Strange()
    strange.register_parameter("one", nn.Parameter(torch.zeros(1)))
    assert mask_form(strange, CPU) == "rows"
