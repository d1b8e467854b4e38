"""Losses of causal models: of a real one, and in compiled code, whose import and tracing take seconds."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from drumline.config.model import AdapterConfig, HuggingFaceModel
from drumline.data.label_places import with_places
from drumline.models import chunked_loss
from drumline.models.adapters import with_adapter
from drumline.models.causal_head import choose_chunked, find_tail
from drumline.models.reference import add_reference
from drumline.models.token_losses import PLAIN, Tail
from drumline.parallel.strategy import Task
from drumline.tasks import LanguageModelling, Preference

pytestmark = pytest.mark.system

VOCABULARY = 48


def pairs() -> dict[str, dict[str, Tensor]]:
    """Two prompts with two answers each."""
    generator = torch.Generator().manual_seed(0)
    both = {}
    for name, length in (("chosen", 20), ("rejected", 24)):
        ids = torch.randint(VOCABULARY, (2, length), generator=generator)
        labels = ids.roll(-1, 1)
        labels[:, :14] = labels[:, -1] = -100
        both[name] = {"input_ids": ids, "labels": labels}
    return both


def test_a_real_model_has_the_loss_of_its_own_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(os.environ["DRUMLINE_TEST_ASSETS"]) / "smollm2"
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32", local_files_only=True)
    model.config.use_cache = False
    tail = choose_chunked("auto", model)
    assert tail == PLAIN
    monkeypatch.setattr(chunked_loss, "CHUNK_LOGITS", 20 * 49152)
    batch = with_places(pairs()["chosen"])
    assert "label_places" in batch
    found = []
    for chunked, dtype in ((False, torch.float32), (tail, torch.float32), (False, torch.float64)):
        task = LanguageModelling(49152, chunked_loss=chunked)
        model.to(dtype).zero_grad()
        total = task.loss(task.forward(model, batch), batch).total
        total.backward()
        # Tied: of both its uses.
        found.append((total.detach(), model.get_input_embeddings().weight.grad.double()))
    (plain, its), (loss, ours), (_, exact) = found
    torch.testing.assert_close(loss, plain, rtol=1e-6, atol=0)
    assert float((ours - exact).norm()) < 1.5 * float((its - exact).norm()) < 1e-5 * float(exact.norm())


def tiny() -> nn.Module:
    torch.manual_seed(0)
    shape = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(shape).double()  # type: ignore[no-any-return]


def with_reference(adapter: AdapterConfig | None) -> nn.Module:
    settings = HuggingFaceModel(path="none", random_weights=True, adapter=adapter)
    model = with_adapter(tiny(), settings, "causal").double()
    add_reference(model, settings)
    with torch.no_grad():  # as after some training
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p), alpha=0.1)
    return model


FORMS: dict[str, tuple[Callable[[], nn.Module], Callable[[Tail], Task], Any]] = {
    "language modelling": (tiny, lambda tail: LanguageModelling(VOCABULARY, chunked_loss=tail), pairs()["chosen"]),
    "few labels": (
        tiny,
        lambda tail: LanguageModelling(VOCABULARY, chunked_loss=tail),
        with_places(pairs()["chosen"]),
    ),
    "a frozen copy": (lambda: with_reference(None), lambda tail: Preference(VOCABULARY, tail=tail), pairs()),
    "an adapter": (
        lambda: with_reference(AdapterConfig(rank=2)),
        lambda tail: Preference(VOCABULARY, tail=tail),
        with_places(pairs()),
    ),
}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's compiler does it
@pytest.mark.parametrize("name", FORMS)
def test_compiled_as_a_whole_it_is_the_same(name: str) -> None:
    make, make_task, batch = FORMS[name]
    model = make()
    task = make_task(find_tail(model))
    trained = [p for p in model.parameters() if p.requires_grad]

    def total() -> Tensor:
        return task.loss(task.forward(model, batch), batch).total

    expected = total()
    gradients = torch.autograd.grad(expected, trained)
    found = torch.compile(total, fullgraph=True, backend="aot_eager")()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(found, trained), gradients, rtol=1e-10, atol=1e-12)
