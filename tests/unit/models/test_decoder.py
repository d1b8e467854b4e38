from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline.config.model import DecoderModel
from drumline.errors import ConfigError, ValueRangeError
from drumline.models.decoder import Decoder, DecoderShape, decoder_from_config

GPT2 = DecoderShape(
    style="gpt2",
    num_layers=2,
    num_heads=4,
    num_kv_heads=4,
    width=32,
    mlp_width=128,
    dropout=0.0,
    tie_embeddings=True,
    vocab_size=64,
    context=16,
)
LLAMA = replace(GPT2, style="llama", num_kv_heads=2, mlp_width=96, tie_embeddings=False)
both_styles = pytest.mark.parametrize("shape", [GPT2, LLAMA], ids=["gpt2", "llama"])


def decoder(shape: DecoderShape, seed: int = 0) -> Decoder:
    torch.manual_seed(seed)
    return Decoder(shape)


def some_ids(length: int = 16, rows: int = 3) -> Tensor:
    return torch.randint(0, 64, (rows, length), generator=torch.Generator().manual_seed(1))


def blur(model: nn.Module) -> None:
    """Give every weight, biases and norms included, a value of its own, so that a forgotten one shows."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)


def copy(target: nn.Module | Tensor, source: Any, *, transpose: bool = False) -> None:
    with torch.no_grad():
        if isinstance(target, Tensor):
            target.copy_(source.T if transpose else source)
            return
        for name, weight in target.named_parameters():
            value = getattr(source, name)
            weight.copy_(value.T if transpose and value.dim() == 2 else value)


def test_gpt2_gives_the_logits_of_transformers_with_the_same_weights() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    theirs = GPT2LMHeadModel(config)
    blur(theirs)
    ours = decoder(GPT2)
    copy(ours.tokens, theirs.transformer.wte)
    assert ours.positions is not None
    copy(ours.positions, theirs.transformer.wpe)
    copy(ours.norm, theirs.transformer.ln_f)
    mine: Any
    for mine, block in zip(ours.blocks, theirs.transformer.h, strict=True):
        copy(mine.attention_norm, block.ln_1)
        copy(mine.attention.qkv, block.attn.c_attn, transpose=True)
        copy(mine.attention.out, block.attn.c_proj, transpose=True)
        copy(mine.mlp_norm, block.ln_2)
        copy(mine.mlp.up, block.mlp.c_fc, transpose=True)
        copy(mine.mlp.out, block.mlp.c_proj, transpose=True)
    for length in (16, 5):
        torch.testing.assert_close(
            ours(some_ids(length)), theirs(input_ids=some_ids(length)).logits, atol=1e-5, rtol=1e-5
        )


def test_llama_gives_the_logits_of_transformers_with_the_same_weights() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    theirs = LlamaForCausalLM(config)
    blur(theirs)
    ours = decoder(LLAMA)
    copy(ours.tokens, theirs.model.embed_tokens)
    copy(ours.norm, theirs.model.norm)
    assert ours.head is not None
    copy(ours.head, theirs.lm_head)
    mine: Any
    for mine, layer in zip(ours.blocks, theirs.model.layers, strict=True):
        attention, mlp = layer.self_attn, layer.mlp
        copy(mine.attention_norm, layer.input_layernorm)
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        copy(mine.attention.qkv.weight, torch.cat([p.weight for p in projections]))
        copy(mine.attention.out, attention.o_proj)
        copy(mine.mlp_norm, layer.post_attention_layernorm)
        copy(mine.mlp.gate, mlp.gate_proj)
        copy(mine.mlp.up, mlp.up_proj)
        copy(mine.mlp.out, mlp.down_proj)
    for length in (16, 5):
        torch.testing.assert_close(
            ours(some_ids(length)), theirs(input_ids=some_ids(length)).logits, atol=1e-5, rtol=1e-5
        )


@both_styles
def test_a_later_token_changes_no_earlier_logits(shape: DecoderShape) -> None:
    model = decoder(shape).double()
    ids = some_ids()
    changed = ids.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 64
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


@both_styles
def test_float64_goes_from_end_to_end(shape: DecoderShape) -> None:
    model = decoder(shape)
    single = model(some_ids())
    double = model.double()(some_ids())
    assert double.dtype == torch.float64
    torch.testing.assert_close(single.double(), double, atol=1e-5, rtol=1e-5)
    double.sum().backward()
    assert all(w.grad is not None and w.grad.dtype == torch.float64 for w in model.parameters())


@both_styles
def test_bfloat16_autocast_keeps_the_logits_near(shape: DecoderShape) -> None:
    model = decoder(shape)
    with torch.autocast("cpu", torch.bfloat16):
        low = model(some_ids())
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), model(some_ids()), atol=0.02, rtol=0.05)


@both_styles
def test_the_graph_is_captured_whole(shape: DecoderShape) -> None:
    model = decoder(shape)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.equal(compiled(some_ids()), model(some_ids()))
    torch._dynamo.reset()


@both_styles
def test_weights_are_a_function_of_the_seed(shape: DecoderShape) -> None:
    model, again = decoder(shape), decoder(shape)
    blur(again)
    torch.manual_seed(7)
    again.reset_parameters()
    torch.manual_seed(7)
    model.reset_parameters()
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), model.state_dict().values(), strict=True))
    other = decoder(shape, seed=8)
    assert not torch.equal(other.tokens.weight, model.tokens.weight)


@both_styles
def test_a_model_laid_out_on_meta_becomes_the_same_one(shape: DecoderShape) -> None:
    with torch.device("meta"):
        laid_out = Decoder(shape)
    laid_out.to_empty(device="cpu")
    torch.manual_seed(3)
    laid_out.reset_parameters()
    direct = decoder(shape)
    torch.manual_seed(3)
    direct.reset_parameters()
    assert torch.equal(laid_out(some_ids()), direct(some_ids()))


@both_styles
def test_fresh_weights_have_gpt2s_spread(shape: DecoderShape) -> None:
    model = decoder(replace(shape, width=256, mlp_width=512, vocab_size=512, num_layers=8))
    residual = 0.02 / 16**0.5
    assert model.tokens.weight.std().item() == pytest.approx(0.02, rel=0.03)
    for name, weight in model.named_parameters():
        if name.endswith("out.weight"):
            assert weight.std().item() == pytest.approx(residual, rel=0.03), name
        elif name.endswith(("qkv.weight", "gate.weight", "up.weight", "head.weight")):
            assert weight.std().item() == pytest.approx(0.02, rel=0.03), name
        elif name.endswith("bias"):
            assert not weight.any(), name
        elif "norm" in name:
            assert (weight == 1).all(), name


def test_the_state_holds_a_tied_matrix_once_and_no_rotary_table() -> None:
    assert "head.weight" not in decoder(GPT2).state_dict()
    untied = decoder(LLAMA).state_dict()
    assert "head.weight" in untied
    assert not [name for name in untied if "rotary" in name]


def test_dropout_acts_in_training_only() -> None:
    model = decoder(replace(GPT2, dropout=0.5))
    assert not torch.equal(model(some_ids()), model(some_ids()))
    model.eval()
    assert torch.equal(model(some_ids()), model(some_ids()))


@both_styles
def test_a_row_longer_than_the_context_is_refused(shape: DecoderShape) -> None:
    with pytest.raises(ValueRangeError, match="17 tokens, the model's context is 16"):
        decoder(shape)(some_ids(17))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 30}, "set model.width to 32"),
        ({"num_kv_heads": 3}, "no multiple of model.num_kv_heads"),
        ({"style": "llama", "width": 12}, "turn channels in pairs"),
    ],
)
def test_a_shape_that_cannot_be_built_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(GPT2, **changes)


def test_the_recipe_fills_in_what_it_leaves_out() -> None:
    gpt2 = decoder_from_config(DecoderModel(num_layers=1, width=48, num_heads=2), vocab_size=257, context=8).shape
    assert (gpt2.mlp_width, gpt2.num_kv_heads, gpt2.vocab_size, gpt2.context) == (192, 2, 320, 8)
    llama = decoder_from_config(
        DecoderModel(style="llama", num_layers=1, width=192, num_heads=4, num_kv_heads=1, vocab_size=300),
        vocab_size=257,
        context=8,
    ).shape
    assert (llama.mlp_width, llama.num_kv_heads, llama.vocab_size) == (512, 1, 300)
    wider = decoder_from_config(DecoderModel(style="llama", width=200, num_layers=1), vocab_size=64, context=8).shape
    assert (wider.mlp_width, wider.vocab_size) == (576, 64)


def test_a_vocabulary_below_the_tokenizers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.vocab_size is 256, the tokenizer has 257 ids"):
        decoder_from_config(DecoderModel(vocab_size=256), vocab_size=257, context=8)
