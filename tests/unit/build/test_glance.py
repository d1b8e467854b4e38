"""What is looked at before a fine-tuning run is chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from drumline.build.glance import answer, glance, model_seen, num_parameters, strings_in
from drumline.build.glance_rows import first_rows
from drumline.errors import DataError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def folder_of(path: Path, **settings: Any) -> Path:
    """A model's folder without weights, with a tokenizer of bytes."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({**LLAMA, **settings}))
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate([*letters, "<|endoftext|>"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows as JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def seen(tmp_path: Path, rows: list[dict[str, Any]], **ask: Any) -> dict[str, Any]:
    """A glance at these rows with the model above."""
    data = write_rows(tmp_path / "rows.jsonl", rows)
    return glance({"model": {"path": str(folder_of(tmp_path / "model"))}, "data": [str(data)], **ask})


def test_rows_are_counted_measured_and_never_shown(tmp_path: Path) -> None:
    rows = [{"text": "secret" * count, "id": count} for count in range(1, 22)]
    found = seen(tmp_path, rows)
    assert found["found"]["task"] == "language_modelling"
    data = found["data"]
    assert (data["kind"], data["num_rows"], data["num_seen"]) == ("records", 21, 21)
    assert (data["usual_tokens"], data["longest_tokens"]) == (6 * 11 + 2, 6 * 21 + 2)
    assert data["num_tokens"] == sum(6 * count + 2 for count in range(1, 22))
    assert "secret" not in json.dumps(found)


def test_only_columns_that_are_learned_are_measured(tmp_path: Path) -> None:
    found = seen(tmp_path, [{"prompt": "ab", "completion": "cde", "url": "x" * 500}] * 3)
    assert found["found"]["texts"] == ("prompt", "completion")
    assert found["data"]["longest_tokens"] < 30
    found = seen(tmp_path, [{"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]}])
    assert found["data"]["longest_tokens"] == len("ab\nc") + 16


def test_columns_that_somebody_names_count_first(tmp_path: Path) -> None:
    rows = [{"a": "some text", "b": f"kind {number % 2}"} for number in range(8)]
    found = seen(tmp_path, rows, columns={"text": "a", "label": "b"})["found"]
    assert (found["task"], dict(found["columns"])) == ("classification", {"text": "a", "label": "b"})


def test_a_folder_of_held_out_files_is_named_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "held").mkdir()
    write_rows(tmp_path / "held/a.jsonl", [{"text": "x"}])
    found = seen(tmp_path, [{"text": "y"}], eval=[str(tmp_path / "held"), "b.jsonl"])
    assert found["held_out"] == [str(tmp_path / "held/*.jsonl"), "b.jsonl"]


def test_cells_of_a_table_are_numbers_where_all_are(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,score,label\nx,0.5,1\ny,1,2\nz,,1\n")
    rows = first_rows([str(tmp_path / "rows.csv")], None)
    assert rows.records[0] == {"text": "x", "score": 0.5, "label": 1}
    assert rows.records[2]["score"] is None


def test_the_number_of_rows_of_a_larger_file_is_told_from_its_size(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", [{"text": f"{number:06}"} for number in range(3000)])
    rows = first_rows([str(data)], None)
    assert len(rows.records) == 2000 and 2800 < rows.num_rows < 3200


@pytest.mark.parametrize(
    ("names", "given", "kind"),
    [
        (["a.txt", "b.txt"], ["a.txt", "b.txt"], "text"),
        (["a.txt", "b.md"], ["."], "text"),
        (["a.jsonl", "notes.txt"], ["."], "records"),
        (["pos/a.txt", "neg/b.txt"], ["."], "text_folders"),
        (["a.jsonl"], ["*.jsonl"], "records"),
        (["pos/a.txt", "neg/b.txt", "README.md"], ["."], "text_folders"),
        (["a.txt", "README.md", "LICENSE.txt"], ["."], "text"),
    ],
)
def test_the_kind_of_data_is_told_by_its_names(tmp_path: Path, names: list[str], given: list[str], kind: str) -> None:
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"text": "some words"}\n')
    assert first_rows([str(tmp_path / path) for path in given], None).kind == kind


@pytest.mark.parametrize(
    ("names", "given", "words"),
    [
        (["a.jsonl", "b.txt"], ["a.jsonl", "b.txt"], "unlike kinds"),
        (["a.jsonl"], ["b.jsonl"], "there is no file"),
        (["a.jsonl"], ["a.xlsx"], "there is no file"),
    ],
)
def test_data_that_is_none_is_refused(tmp_path: Path, names: list[str], given: list[str], words: str) -> None:
    for name in names:
        (tmp_path / name).write_text('{"text": "some words"}\n')
    with pytest.raises(DataError, match=words):
        first_rows([str(tmp_path / path) for path in given], None)


def test_files_without_a_row_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match="there is no row"):
        first_rows([str(tmp_path / "a.jsonl")], None)


@pytest.mark.parametrize(
    ("settings", "family", "longest"),
    [
        ({}, "causal", 8192),
        ({"architectures": ["GPT2LMHeadModel"], "max_position_embeddings": None, "n_positions": 1024}, "causal", 1024),
        ({"architectures": ["BertModel"], "max_position_embeddings": 512}, "encoder", 512),
        ({"architectures": ["RobertaForMaskedLM"], "max_position_embeddings": 514}, "encoder", 512),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "encoder_decoder", 8192),
    ],
)
def test_the_kind_of_model_is_told_by_its_settings(
    tmp_path: Path, settings: dict[str, Any], family: str, longest: int
) -> None:
    found = model_seen("m", folder_of(tmp_path, **settings))
    assert (found.family, found.longest) == (family, longest)


def test_a_chat_template_is_seen_where_there_is_one(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    assert not model_seen("m", folder).has_template
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert model_seen("m", folder).has_template
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert model_seen("m", folder).has_template


def test_the_size_of_a_model_is_told_by_its_weights_or_its_shape(tmp_path: Path) -> None:
    assert num_parameters(LLAMA, tmp_path) == pytest.approx(134_515_008, rel=0.001)  # SmolLM2-135M, counted
    gpt2 = {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
    assert num_parameters(gpt2, tmp_path) == pytest.approx(124_439_808, rel=0.01)  # GPT-2, counted
    (tmp_path / "model.safetensors").write_bytes(bytes(400))
    assert (num_parameters(LLAMA, tmp_path), num_parameters({"dtype": "bfloat16"}, tmp_path)) == (100, 200)


def test_strings_are_found_at_any_depth_but_for_roles() -> None:
    value = {"role": "user", "content": [{"type": "text"}, "x"], "from": "human", "n": 3}
    assert list(strings_in(value)) == ["text", "x"]


def test_what_is_wrong_comes_as_an_answer_with_its_fix(tmp_path: Path) -> None:
    ask = {"model": {"path": str(tmp_path / "nothing")}, "data": ["x.jsonl"]}
    found = answer(json.dumps(ask))
    assert found["code"] == "config" and "nothing" in found["problem"] and found["fix"]
    folder = folder_of(tmp_path / "model", architectures=["BertModel"])
    (tmp_path / "a.txt").write_text("some words")
    found = answer(json.dumps({"model": {"path": str(folder)}, "data": [str(tmp_path / "a.txt")]}))
    assert (found["code"], "running text, and" in found["problem"]) == ("config", True)
    ask = {"model": {"path": str(folder)}, "data": [str(tmp_path / "a.txt")], "task": "classification"}
    assert "without labels" in answer(json.dumps(ask))["problem"]
