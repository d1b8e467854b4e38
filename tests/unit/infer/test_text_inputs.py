"""Rows as ids: what the tokenizer gives one by one, no longer than the model takes, exactly as wide as asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers

from drumline.data.tokenizers import ByteTokenizer, HuggingFaceTokenizer, Tokenizer
from drumline.errors import ConfigError
from drumline.infer.records import Prepared, Row
from drumline.infer.text_inputs import UNCUT, Limit, RowEncoder, TextRows, limit_of, longest_row, padded
from tests.tiny_models import save_tokenizer

TEXTS = ["Call me Ishmael.", "", " two  spaces ", "日本", "[SEP] in a text"]
CPU = torch.device("cpu")


def with_template(folder: Path, pair: str) -> Tokenizer:
    """The tiny tokenizer with a template around one text and around two."""
    save_tokenizer(folder)
    file = str(folder / "tokenizer.json")
    whole = tokenizers.Tokenizer.from_file(file)
    special = [(name, whole.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    whole.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", pair, special)
    whole.save(file)
    return HuggingFaceTokenizer(folder)


@pytest.mark.parametrize("longest", [UNCUT, 7])
@pytest.mark.parametrize("pair", ["[CLS] $A [SEP] $B:1 [SEP]:1", "[CLS] $A [SEP] [SEP] $B [SEP]"])
def test_many_texts_at_once_are_encoded_as_one_by_one(tmp_path: Path, pair: str, longest: int) -> None:
    for tokenizer in (with_template(tmp_path, pair), ByteTokenizer()):
        encode = RowEncoder(tokenizer, pair=False)
        for text, row in zip(TEXTS, encode(TEXTS, None, longest), strict=True):
            assert row.ids.tolist() == tokenizer.encode_row(text, None, longest).ids.tolist()
        both = RowEncoder(tokenizer, pair=True)
        for text, other, row in zip(TEXTS, TEXTS[::-1], both(TEXTS, TEXTS[::-1], longest), strict=True):
            wanted = tokenizer.encode_row(text, other, longest)
            assert row.type_ids is not None
            assert [row.ids.tolist(), row.type_ids.tolist()] == [wanted.ids.tolist(), wanted.type_ids.tolist()]


def test_a_tokenizer_whose_rows_are_no_template_is_asked_row_by_row() -> None:
    class Backwards(ByteTokenizer):
        def encode_row(self, text: str, pair: str | None, longest: int) -> Any:
            return super().encode_row(text[::-1], pair, longest)

    [row] = RowEncoder(Backwards(), pair=False)(["abc"], None)
    assert bytes(row.ids.tolist()) == b"cba"


def test_longer_rows_are_refused_or_cut_as_the_tokenizer_cuts(tmp_path: Path) -> None:
    tokenizer = with_template(tmp_path, "[CLS] $A [SEP] $B:1 [SEP]:1")
    rows = [Row(0, {"text": "whale " * 2000}), Row(1, {"text": 7})]
    refused = TextRows(tokenizer, ("text",), Limit(16, "error"))(rows)
    assert isinstance(refused[0], str)
    assert refused[0].startswith("it has ") and refused[0].endswith("tokens, and the model takes 16")
    assert isinstance(refused[1], Prepared)
    cut = TextRows(tokenizer, ("text",), Limit(16, "cut"))(rows)[0]
    assert isinstance(cut, Prepared)
    assert cut.payload.ids.tolist() == tokenizer.encode_row("whale " * 2000, None, 16).ids.tolist()
    assert (cut.length, cut.size) == (16, 16)


def test_a_batch_is_exactly_as_wide_as_asked() -> None:
    found = TextRows(ByteTokenizer(), ("text",), Limit(None, "error"))([Row(0, {"text": "abc"}), Row(1, {"text": ""})])
    rows = [row for row in found if isinstance(row, Prepared)]
    batch = padded([*rows, None], 5, 256, CPU)
    assert batch.ids.tolist() == [[97, 98, 99, 256, 256], [256] * 5, [256] * 5]
    assert batch.lengths.tolist() == [3, 1, 1]
    assert batch.mask.sum().item() == 5
    assert batch.type_ids is None


def test_the_longest_row_is_what_the_models_positions_allow() -> None:
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 16}
    roberta = transformers.RobertaConfig(max_position_embeddings=66, pad_token_id=1, **sizes)
    assert longest_row(transformers.RobertaModel(roberta)) == 64
    assert longest_row(transformers.BertModel(transformers.BertConfig(max_position_embeddings=32, **sizes))) == 32
    llama = transformers.LlamaConfig(max_position_embeddings=128, num_key_value_heads=1, intermediate_size=8, **sizes)
    assert longest_row(transformers.LlamaModel(llama)) == 128
    assert longest_row(torch.nn.Linear(1, 1)) is None


def test_a_context_beyond_a_table_of_positions_is_refused() -> None:
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 16}
    bert = transformers.BertModel(transformers.BertConfig(max_position_embeddings=32, **sizes))
    assert limit_of(bert, 32, "cut") == Limit(32, "cut")
    with pytest.raises(ConfigError, match=r"task.context is 33, and the model has positions for 32 tokens"):
        limit_of(bert, 33, "cut")
    llama = transformers.LlamaConfig(max_position_embeddings=32, num_key_value_heads=1, intermediate_size=8, **sizes)
    assert limit_of(transformers.LlamaModel(llama), 64, "error").tokens == 64


def test_a_missing_value_of_a_table_is_no_text() -> None:
    rows = [Row(0, {"text": float("nan")}), Row(1, {"text": None})]
    found = TextRows(ByteTokenizer(), ("text",), Limit(None, "error"))(rows)
    assert found == ["the row's field 'text' is empty"] * 2
