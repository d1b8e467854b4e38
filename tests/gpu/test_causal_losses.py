"""Losses of Hugging Face causal models on a GPU: near the plain ones, in less memory, without waiting for the host."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from drumline.config.model import AdapterConfig, HuggingFaceModel
from drumline.data.label_places import with_places
from drumline.models.adapters import with_adapter
from drumline.models.attention_choice import set_attention
from drumline.models.causal_head import find_tail
from drumline.models.reference import add_reference
from drumline.models.token_losses import PLAIN, Tail, losses_and_gradient, pieces_for
from drumline.parallel.strategy import Task
from drumline.tasks import LanguageModelling, Preference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]

VOCABULARY, LENGTH, ROWS = 49152, 1024, 16
CUDA = torch.device("cuda", 0)


def make(**more: Any) -> nn.Module:
    torch.manual_seed(0)
    shape = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        tie_word_embeddings=True,
        use_cache=False,
        **more,
    )
    model: nn.Module = transformers.LlamaForCausalLM(shape)
    return model


def rows(learned: int, seed: int = 0) -> dict[str, Tensor]:
    """ROWS rows whose last `learned` labels count."""
    ids = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(seed))
    labels = ids.roll(-1, 1)
    labels[:, : LENGTH - learned - 1] = labels[:, -1] = -100
    return with_places({"input_ids": ids, "labels": labels})  # type: ignore[no-any-return]


def on_gpu(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: on_gpu(value) for name, value in batch.items()}
    return batch.to(CUDA)


@contextmanager
def without_syncs() -> Iterator[None]:
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def one_pass(model: nn.Module, task: Task, batch: Any) -> Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        loss = task.loss(task.forward(model, batch), batch).total
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("tail", [PLAIN, Tail(scale=0.25), Tail(cap=30.0)])
def test_the_compiled_piece_is_the_plain_one(tail: Tail) -> None:
    piece = pieces_for(CUDA)
    assert piece is not losses_and_gradient
    for tokens in (7, 128, 640):
        generator = torch.Generator(CUDA).manual_seed(tokens)
        products = (torch.randn(tokens, 5000, device=CUDA, generator=generator) * 8).bfloat16()
        labels = torch.randint(5000, (tokens,), device=CUDA, generator=generator)
        labels[::3] = -100
        losses, gradient = piece(products, labels, -100, *tail, torch.bfloat16)
        expected, reference = losses_and_gradient(products.double(), labels, -100, *tail, torch.float64)
        torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-5)
        assert gradient.dtype == torch.bfloat16
        torch.testing.assert_close(gradient.double(), reference, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("learned", [LENGTH - 1, 100])
def test_chunked_is_near_plain_and_takes_less_memory(learned: int) -> None:
    found = []
    batch = on_gpu(rows(learned))
    for chunked in (False, PLAIN):
        model = make().to(CUDA)
        set_attention(model, "varlen")  # as a run does on a GPU: with sdpa transformers looks at the ids' positions
        task = LanguageModelling(VOCABULARY, chunked_loss=chunked)
        one_pass(model, task, batch)  # compiles
        model.zero_grad()
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with without_syncs():
            loss = one_pass(model, task, batch)
        peak = torch.cuda.max_memory_allocated() - before
        found.append((float(loss), peak, {name: p.grad for name, p in model.named_parameters()}))
    (plain, most, expected), (ours, peak, gradients) = found
    assert ours == pytest.approx(plain, rel=1e-3)
    assert peak < 0.6 * most
    for name, reference in expected.items():
        gradient = gradients[name]
        assert gradient is not None and reference is not None
        assert float((gradient - reference).norm() / reference.norm()) < 0.05, name


@pytest.mark.parametrize("adapted", [False, True])
def test_preferences_begin_at_log_two_without_waiting(adapted: bool) -> None:
    adapter = AdapterConfig(rank=8) if adapted else None
    settings = HuggingFaceModel(path="none", random_weights=True, adapter=adapter)
    model = with_adapter(make(), settings, "causal")
    add_reference(model, settings)
    set_attention(model, "varlen")
    model.to(CUDA).train()
    task = Preference(VOCABULARY, tail=find_tail(model))
    batch = on_gpu({"chosen": rows(100), "rejected": rows(100, seed=1)})
    one_pass(model, task, batch)
    with without_syncs():
        loss = one_pass(model, task, batch)
    assert float(loss) == pytest.approx(ROWS * math.log(2), rel=1e-6)
    trained = [p for p in model.parameters() if p.requires_grad]
    assert trained and all(p.grad is not None and bool(p.grad.isfinite().all()) for p in trained)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by Dynamo, of its own doing
def test_compiled_as_a_whole_it_has_the_same_loss() -> None:
    model, task, batch = make().to(CUDA), LanguageModelling(VOCABULARY, chunked_loss=PLAIN), on_gpu(rows(100))
    plain = float(one_pass(model, task, batch))

    def total() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return task.loss(task.forward(model, batch), batch).total

    assert float(torch.compile(total)().detach()) == pytest.approx(plain, rel=1e-3)
