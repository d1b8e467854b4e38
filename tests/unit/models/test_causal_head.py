"""Chunked losses of Hugging Face models: those of the model's own logits."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from drumline.data.label_places import LabelPlaces, places_of
from drumline.data.padding import Pad
from drumline.errors import ConfigError
from drumline.models import chunked_loss
from drumline.models.causal_head import LARGE_VOCABULARY, choose_chunked, find_tail
from drumline.models.token_losses import PLAIN, Tail
from drumline.tasks.language_modelling import LanguageModelling

VOCABULARY = 96
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": False,
}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "use_cache": False}
QUIET = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}
KINDS: dict[str, tuple[dict[str, Any], Tail]] = {
    "Llama": ({**SIZES, "tie_word_embeddings": True}, PLAIN),
    "Qwen2": ({**SIZES, "tie_word_embeddings": False}, PLAIN),
    "GPT2": ({**GPT2, **QUIET}, PLAIN),
    "Phi": (SIZES, PLAIN),  # with a bias
    "Gemma2": ({**SIZES, "final_logit_softcapping": 5.0}, Tail(cap=5.0)),
    "Cohere": ({**SIZES, "logit_scale": 0.25}, Tail(scale=0.25)),
    "Granite": ({**SIZES, "logits_scaling": 8.0}, Tail(scale=0.125)),
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Seven tokens at a time."""
    monkeypatch.setattr(chunked_loss, "CHUNK_LOGITS", 7 * VOCABULARY)
    yield


def make(kind: str, **more: Any) -> nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**KINDS[kind][0], **more})
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    layer = model.get_output_embeddings()  # type: ignore[operator]
    nn.init.normal_(layer.weight, std=0.5)  # so that a cap is felt
    return model


def masked() -> dict[str, Tensor]:
    """Two padded rows with few labels."""
    ids = torch.randint(3, VOCABULARY, (2, 24), generator=torch.Generator().manual_seed(1))
    labels = torch.full((2, 24), -100)
    labels[0, 15:22], labels[1, 9:12] = ids[0, 16:23], ids[1, 10:13]
    mask = torch.ones_like(ids)
    mask[1, 14:] = 0
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}


def packed() -> dict[str, Tensor]:
    """Two rows of several texts."""
    batch = masked()
    lengths = [(7, 17), (10, 5, 9)]
    positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
    labels = batch["input_ids"].roll(-1, 1).masked_fill(positions.roll(-1, 1) == 0, -100)
    return {"input_ids": batch["input_ids"], "labels": labels, "position_ids": positions}


def answer(model: nn.Module, batch: dict[str, Tensor], **options: Any) -> tuple[Tensor, dict[str, Any], Any]:
    """Loss, gradients, and metrics without gradient."""
    task = LanguageModelling(VOCABULARY, exact_match=True, **options)
    model.zero_grad()
    total = task.loss(task.forward(model, batch), batch).total
    total.backward()
    with torch.no_grad():
        metrics = dict(task.loss(task.forward(model, batch), batch).metrics)
    return total.detach(), {name: p.grad for name, p in model.named_parameters()}, metrics


@pytest.mark.parametrize("kind", KINDS)
def test_loss_gradients_and_metrics_are_the_plain_ones(kind: str) -> None:
    model, tail = make(kind), find_tail(make(kind))
    assert tail == KINDS[kind][1]
    few = masked()
    places = places_of(few["labels"])
    assert places is not None and len(places) == 12
    for plain, batch in ((few, few), (few, {**few, "label_places": places}), (packed(), packed())):
        expected = answer(model, plain)
        found = answer(model, batch, chunked_loss=tail)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
        assert expected[2]["accuracy"][1] == (batch["labels"] != -100).sum()


def test_float32_is_equal_to_a_millionth() -> None:
    model = make("Llama").float()
    (expected, slow, _), (found, fast, _) = answer(model, packed()), answer(model, packed(), chunked_loss=PLAIN)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    largest = max(float(gradient.abs().max()) for gradient in slow.values())
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-6 * largest)


def test_a_model_of_any_size_is_looked_at_without_values() -> None:
    with torch.device("meta"):
        model = make("Gemma2")
    before = copy.copy(model._modules), torch.get_rng_state()
    assert find_tail(model) == Tail(cap=5.0)
    assert model._modules == before[0] and torch.get_rng_state().equal(before[1])


def test_auto_takes_it_for_large_vocabularies_that_allow_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "drumline")
    with torch.device("meta"):
        small, large = make("Llama"), make("Llama", vocab_size=LARGE_VOCABULARY)
    assert choose_chunked("auto", small) is False
    assert choose_chunked("auto", large) == choose_chunked(True, small) == PLAIN
    assert choose_chunked(False, large) is False
    assert f"the loss of {LARGE_VOCABULARY} logits a token" in caplog.text


def test_what_is_behind_an_output_layer_is_reproduced_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    Llama: Any = transformers.LlamaForCausalLM

    class Odd(Llama):  # type: ignore[misc]
        def forward(self, *args: Any, **more: Any) -> Any:
            found = super().forward(*args, **more)
            found.logits = found.logits.clamp(max=1.0)
            return found

    class Behind(Llama):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.lm_head: nn.Module = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 8))

    caplog.set_level("INFO", "drumline")
    config = transformers.LlamaConfig(**{**SIZES, "vocab_size": LARGE_VOCABULARY})
    with torch.device("meta"):
        models: list[nn.Module] = [Odd(config), Behind(config)]
    for model, reason in zip(models, ("neither a scale nor a cap", "is a Sequential and no plain"), strict=True):
        assert choose_chunked("auto", model) is False
        assert reason in caplog.text
        with pytest.raises(ConfigError, match=reason):
            choose_chunked(True, model)


def test_other_models() -> None:
    with pytest.raises(ConfigError, match="a Linear is none"):
        choose_chunked(True, nn.Linear(2, 2))
    assert choose_chunked("auto", nn.Linear(2, 2)) is False
    with pytest.raises(ConfigError, match=r"causal_head.find_tail\(model\)"):
        LanguageModelling(VOCABULARY, chunked_loss=True).forward(make("Llama"), masked())


def test_places_are_few_sizes_and_hold_every_label() -> None:
    for count in range(0, 200):
        labels = torch.full((4, 50), -100)
        labels.view(-1)[:count] = 1
        places = places_of(labels.flip(1))
        assert (places is None) == (count > 100)
        if places is not None:
            assert len(places) == max(1, -(-count // 25)) * 25
            flat = labels.flip(1).flatten()
            assert sorted(places[:count].tolist()) == (flat != -100).nonzero().flatten().tolist()
            assert bool((flat[places[count:]] == -100).all())


def test_collate_adds_places_where_few_labels_count() -> None:
    collate = LabelPlaces(Pad({"labels": -100}))
    few, many = torch.tensor([-100, -100, 5, -100]), torch.tensor([1, 2, 3, 4])
    assert collate([{"labels": few}, {"labels": few}])["label_places"].tolist() == [2, 6]
    assert list(collate([{"labels": many}])) == ["labels"]
