"""A model grows for the tokens that were added to its tokenizer, and for no other reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from torch import nn

from drumline.build.parts import build_parts
from drumline.errors import ConfigError
from tests.unit.build.data import recipe, write_records

WORDS = ["[UNK]", "a", "b", "c"]
TEXTS = [{"text": "a b c", "label": "x"}, {"text": "b <new> a", "label": "y"}]


def save_tokenizer(folder: Path, words: list[str], added: list[str]) -> str:
    folder.mkdir(exist_ok=True)
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(words)}, "[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(added)
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A BERT of the four words, with its tokenizer."""
    torch.manual_seed(0)
    shape = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=32,
    )
    transformers.BertForSequenceClassification(shape).save_pretrained(tmp_path / "model")
    save_tokenizer(tmp_path / "model", WORDS, [])
    return tmp_path / "model"


def build(folder: Path, model: dict[str, Any], tokenizer: str | None = None) -> nn.Module:
    train = write_records(folder / "a.jsonl", TEXTS)
    section = {"kind": "huggingface", **model}
    given = {} if tokenizer is None else {"tokenizer": tokenizer}
    return build_parts(recipe(folder, "classification", section, train=[train], context=8, **given)).model


def test_added_tokens_get_rows(tmp_path: Path, model: Path) -> None:
    more = save_tokenizer(tmp_path / "more", WORDS, ["<new>"])
    before, after = build(tmp_path, {"path": str(model)}), build(tmp_path, {"path": str(model)}, more)
    old, new = (each.get_parameter("bert.embeddings.word_embeddings.weight") for each in (before, after))
    assert (len(old), len(new)) == (4, 64)
    assert torch.equal(new[:4], old)
    assert torch.allclose(new[4:], old.mean(0).expand(60, -1))


def test_as_many_ids_as_rows_change_nothing(tmp_path: Path, model: Path) -> None:
    assert len(build(tmp_path, {"path": str(model)}).get_parameter("bert.embeddings.word_embeddings.weight")) == 4


@pytest.mark.parametrize("words", [["[UNK]", "b", "a", "c", "d"], ["[UNK]", "a", "b", "d", "e"], None])
def test_another_models_tokenizer_is_refused(tmp_path: Path, model: Path, words: list[str] | None) -> None:
    """Of the same words in another order, of other words, and of bytes."""
    other = "byte" if words is None else save_tokenizer(tmp_path / "other", words, [])
    ids = 257 if words is None else 5
    with pytest.raises(ConfigError, match=rf"{ids} ids, the model in .* takes 4, and their tokenizer is not its own"):
        build(tmp_path, {"path": str(model)}, other)
    random = build(tmp_path, {"path": str(model), "random_weights": True}, other)
    assert random.config.vocab_size % 64 == 0  # type: ignore[union-attr, operator]


def test_a_model_without_a_tokenizer_takes_the_one_that_it_is_given(tmp_path: Path, model: Path) -> None:
    (model / "tokenizer.json").unlink()
    grown = build(tmp_path, {"path": str(model)}, save_tokenizer(tmp_path / "more", WORDS, ["<new>"]))
    assert json.loads(grown.config.to_json_string())["vocab_size"] == 64  # type: ignore[union-attr, operator]


def test_rows_that_an_adapter_would_freeze_are_refused(tmp_path: Path, model: Path) -> None:
    more = save_tokenizer(tmp_path / "more", WORDS, ["<new>"])
    adapter: dict[str, Any] = {"rank": 2}
    with pytest.raises(ConfigError, match=r"(?s)never be trained.*train_also: \[word_embeddings\]"):
        build(tmp_path, {"path": str(model), "adapter": adapter}, more)
    built = build(tmp_path, {"path": str(model), "adapter": adapter | {"train_also": ["word_embeddings"]}}, more)
    trained = {name for name, p in built.named_parameters() if p.requires_grad}
    assert any("word_embeddings" in name for name in trained)


def test_ids_that_mean_other_tokens_are_warned_of(
    tmp_path: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = "whose weights take its ids for other tokens"
    build(tmp_path, {"path": str(model)}, save_tokenizer(tmp_path / "same", WORDS, []))
    build(tmp_path, {"path": str(model)})
    assert said not in caplog.text
    build(tmp_path, {"path": str(model)}, save_tokenizer(tmp_path / "other", ["[UNK]", "c", "b", "a"], []))
    assert said in caplog.text
