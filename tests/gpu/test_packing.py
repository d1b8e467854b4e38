"""Packed texts on a real GPU: variable-length attention, without waits, compiled once. Run: pytest -m gpu."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch._dynamo.utils import counters

from drumline import RunConfig, Trainer
from drumline.data.document_packing import PackedBatch, PackedTexts, pack
from drumline.data.token_row_cache import Encoding, TokenRows, token_rows
from drumline.engine import choices
from drumline.models.attention_choice import Attention, set_attention
from drumline.models.attention_varlen import allowed, takes, varlen_attention
from drumline.parallel.compile import compile_blocks
from drumline.rundir import read_lines
from drumline.tasks.language_modelling import LanguageModelling

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Synchronization debug mode")]

DEVICE = torch.device("cuda", 0)
STARTS = torch.tensor([0, 60, 128, 131, 200, 256, 256, 256], dtype=torch.int32)
"""Of two rows of 128 tokens."""
VOCABULARY, CONTEXT = 512, 256


class Layer(nn.Module):
    """What transformers hands over as itself."""

    is_causal = True


def heads(num_kv_heads: int, dtype: torch.dtype) -> list[Tensor]:
    """The same numbers, rounded to bfloat16, in any type."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    made = [
        torch.randn(2, each, 128, 64, generator=generator, device=DEVICE) for each in (8, num_kv_heads, num_kv_heads)
    ]
    return [each.bfloat16().to(dtype).requires_grad_() for each in made]


def dense(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
    key, value = (each.repeat_interleave(8 // each.shape[1], 1) for each in (key, value))
    mask = allowed(query, key, STARTS.to(DEVICE), window)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)


def with_gradients(mixed: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    direction = torch.randn(mixed.shape, generator=torch.Generator(DEVICE).manual_seed(1), device=DEVICE)
    return [mixed, *torch.autograd.grad(mixed, inputs, direction.to(mixed.dtype))]


@pytest.mark.parametrize("num_kv_heads", [8, 2, 1])
@pytest.mark.parametrize("window", [None, 7])
def test_the_kernel_is_as_exact_as_dense_attention(num_kv_heads: int, window: int | None) -> None:
    exact, half = heads(num_kv_heads, torch.float32), heads(num_kv_heads, torch.bfloat16)
    wanted = with_gradients(dense(exact[0], exact[1], exact[2], window), exact)
    rounded = with_gradients(dense(half[0], half[1], half[2], window), half)
    own = heads(num_kv_heads, torch.bfloat16)
    assert takes(own[0], own[2], torch.bfloat16)
    starts = STARTS.to(DEVICE)
    mixed, _ = varlen_attention(Layer(), own[0], own[1], own[2], None, cu_seqlens=starts, sliding_window=window)
    for found, other, right in zip(with_gradients(mixed, own), rounded, wanted, strict=True):
        error, usual = ((each.float() - right).abs().max() for each in (found, other))
        assert error <= 2 * usual + 1e-3


def llama(**changes: Any) -> nn.Module:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "use_cache": False}
    sizes |= {"vocab_size": VOCABULARY, "num_attention_heads": 4, "num_key_value_heads": 2, **changes}
    model: nn.Module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    return model.train()


@pytest.fixture
def texts(tmp_path: Path) -> TokenRows:
    """Sequences that count up, of 8 to 120 tokens."""

    def encode(record: Any) -> Any:
        number = record["number"]
        ids = (number + torch.arange(8 + number * 37 % 113) * (1 + number % 3)) % VOCABULARY
        return [(ids.numpy(), torch.ones(len(ids), dtype=torch.bool).numpy())]

    records = [{"number": number} for number in range(200)]
    rows: TokenRows = token_rows(records, Encoding(encode, [], VOCABULARY, CONTEXT, tmp_path / "cache"), "data.train")
    return rows


def batches(texts: TokenRows) -> list[dict[str, Tensor]]:
    """Two batches of four rows, whose texts begin at different places."""
    rows, collate = PackedTexts(texts, pack(texts.lengths, CONTEXT)), PackedBatch(5.0)
    made = [collate([rows[i] for i in range(start, start + 4)]) for start in (0, 4)]
    assert made[0]["cu_seqlens"].shape == made[1]["cu_seqlens"].shape
    assert not torch.equal(made[0]["cu_seqlens"], made[1]["cu_seqlens"])
    return [{name: value.to(DEVICE) for name, value in batch.items()} for batch in made]


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        task = LanguageModelling(VOCABULARY)
        total = task.loss(task.forward(model, batch), batch).total
    total.backward()
    return total.detach()


def test_losses_and_gradients_are_those_of_masked_attention(texts: TokenRows) -> None:
    found: dict[str, tuple[Tensor, Tensor]] = {}
    kinds: list[Attention] = ["sdpa", "varlen"]
    for kind in kinds:
        model = llama().to(DEVICE)
        set_attention(model, kind)
        loss = loss_of(model, batches(texts)[0])
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        found[kind] = loss, torch.cat(gradients)
    (loss, gradient), (other, another) = found["sdpa"], found["varlen"]
    assert abs(loss - other) <= 1e-3 * loss
    assert (gradient - another).norm() <= 0.02 * gradient.norm()


def test_no_pass_makes_the_host_wait(texts: TokenRows) -> None:
    model = llama().to(DEVICE)
    set_attention(model, "varlen")
    batch = batches(texts)[0]
    loss_of(model, batch)
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss_of(model, batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_blocks_are_compiled_once_for_all_batches(texts: TokenRows) -> None:
    model, compiled = llama().to(DEVICE), llama().to(DEVICE)
    for each in (model, compiled):
        set_attention(each, "varlen")
    compile_blocks(compiled, fullgraph=True, dynamic=False)
    torch._dynamo.reset()
    counters.clear()
    for batch in batches(texts):
        loss, other = loss_of(model, batch), loss_of(compiled, batch)
        assert abs(loss - other) <= 2e-3 * loss
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("compiling", ["auto", "blocks", "whole"])
def test_a_run_chooses_attention_and_compiler(
    compiling: str, tmp_path: Path, texts: TokenRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "SHORT_RUN_S", 0.0)
    config = RunConfig.model_validate(
        {
            "run_dir": tmp_path / "run",
            "model": {"kind": "huggingface", "path": "a folder that is not read"},
            "train": {"global_batch": 8, "max_steps": 4, "precision": "bf16", "compile": compiling},
            "track": {"every": 1, "console": False},
            "checkpoint": {"at_end": False},
            "monitor": {"record": False},
            "hardware": {"device": "cuda"},
            "parallel": {"kind": "single"},
        }
    )
    model = llama()
    rows = PackedTexts(texts, pack(texts.lengths, CONTEXT))
    with Trainer(model, config, rows, loss=LanguageModelling(VOCABULARY), collate=PackedBatch(5.0)) as trainer:
        trainer.fit()
    (event,) = [line for line in read_lines(tmp_path / "run" / "events.jsonl") if line["event"] == "choices"]
    if compiling == "whole":
        assert event["attention"]["chosen"] == "varlen"
        assert event["attention"]["seconds"] == {}
    else:
        assert set(event["attention"]["seconds"]) >= {"varlen", "sdpa"}
        assert all(event["attention"]["seconds"].values())
        assert event["attention"]["chosen"] in event["attention"]["seconds"]
    if compiling == "auto":
        assert set(event["compile"]["seconds"]) == {"none", "blocks"}
        assert list(event).index("compile") < list(event).index("attention")
        compiling = event["compile"]["chosen"]
    assert (model.model.layers[0]._compiled_call_impl is not None) == (compiling == "blocks")  # type: ignore[union-attr, index]
