"""Rows of language modelling and of preferences, from files to batches."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
from torch import Tensor

from drumline.build.language import too_few, window_of
from drumline.build.parts import Built, build_parts
from drumline.build.rows import load_rows
from drumline.config.load import config_from_mapping
from drumline.data.document_packing import PackedTexts
from drumline.data.length_order import ByLength
from drumline.data.token_row_cache import PairRows, TokenRows
from drumline.data.tokenizers import load_tokenizer
from drumline.errors import ConfigError, DataError
from tests.unit.build.data import recipe, write_records
from tests.unit.data.chat_tokenizers import byte_level

DECODER = {"kind": "decoder", "num_layers": 1, "num_heads": 2, "width": 8}
TASK = "language_modelling"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A model of two small layers with random weights, whose tokenizer has control tokens and no chat template."""
    folder = tmp_path_factory.mktemp("llama")
    tokenizer = byte_level(folder)
    shape = transformers.LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        pad_token_id=3,
    )
    shape.save_pretrained(folder)
    return {"kind": "huggingface", "path": str(folder), "random_weights": True}


def chats(number: int) -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": "q" * (1 + row % 5)}, {"role": "assistant", "content": "a" * 3}]}
        for row in range(number)
    ]


def batch_of(built: Built, rows: list[int]) -> dict[str, Tensor]:
    """A batch as the loader makes it, that the task takes."""
    collate, task = built.options.get("collate"), built.options.get("loss")
    assert collate is not None
    batch: dict[str, Tensor] = collate([built.train[row] for row in rows])
    checked: Any = task
    checked.check(batch)
    with torch.no_grad():
        assert torch.isfinite(checked.loss(checked.forward(built.model, batch), batch).total)
    return batch


def test_chats_are_packed_where_the_model_keeps_them_apart(
    tmp_path: Path, llama: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    train = write_records(tmp_path / "a.jsonl", chats(120))
    section = {"train": [train], "eval": [write_records(tmp_path / "b.jsonl", chats(6)[3:])], "template": "chatml"}
    with caplog.at_level(logging.INFO, logger="drumline.build"):
        built = build_parts(recipe(tmp_path, TASK, llama, context=128, packing="packed", **section))
    assert isinstance(built.train, PackedTexts) and isinstance(built.options.get("eval_data"), PackedTexts)
    batch = batch_of(built, [0, 1])
    assert batch["input_ids"].shape == batch["position_ids"].shape == (2, 128)
    assert batch["cu_seqlens"][-1] == 256 and "attention_mask" not in batch
    # The words of the assistant and the end of its turn, and nothing else.
    texts = int((batch["position_ids"][:, 1:] == 0).sum()) + 2
    learned = batch["labels"][batch["labels"] != -100]
    assert len(learned) % 4 == 0 and texts - 2 <= len(learned) // 4 <= texts
    told = caplog.text
    assert "data.packing is packed" in told and "120 texts in" in told
    assert built.loaded is not None and built.loaded.form is not None and built.loaded.template is not None
    assert built.loaded.form.reason == "the rows have messages: messages with roles"
    assert built.loaded.template.where == "the packed template chatml"


def test_few_short_texts_are_not_packed_unless_that_is_asked_for(
    tmp_path: Path, llama: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    train = write_records(tmp_path / "a.jsonl", [{"text": "abc" * (1 + row % 7)} for row in range(40)])
    with caplog.at_level(logging.INFO, logger="drumline.build"):
        built = build_parts(recipe(tmp_path, TASK, llama, train=[train], context=128))
    assert isinstance(built.train, ByLength) and "fewer than 8" in caplog.text
    batch = batch_of(built, [0, 1, 6])
    assert batch["input_ids"].shape == (3, 24) and set(batch) <= {"input_ids", "labels", "label_places"}
    assert batch["input_ids"][0, 4:].tolist() == [3] * 20 and batch["labels"][0, 3:].tolist() == [-100] * 21
    # Rows of one update are of similar length.
    order = built.train.epoch_order(0, 0, shuffle=True)
    pairs = built.train.lengths[order].reshape(-1, 2)
    assert sorted(order.tolist()) == list(range(40)) and abs(pairs[:, 0] - pairs[:, 1]).max() <= 3
    apart = build_parts(recipe(tmp_path, TASK, llama, train=[train], context=128, group_by_length=False))
    assert isinstance(apart.train, TokenRows)
    long = write_records(tmp_path / "c.jsonl", [{"text": "abc" * 30} for _ in range(40)])
    assert isinstance(build_parts(recipe(tmp_path, TASK, llama, train=[long], context=128)).train, PackedTexts)


def test_sources_with_weights_are_packed_each_by_itself(tmp_path: Path, llama: dict[str, Any]) -> None:
    files = [write_records(tmp_path / f"{name}.jsonl", [{"text": name * 9}] * 8) for name in "ab"]
    weighted = [{"paths": [files[0]], "weight": 2.0}, {"paths": [files[1]], "weight": 1.0}]
    built = build_parts(recipe(tmp_path, TASK, llama, train=weighted, context=20, packing="packed"))
    assert built.train.rows_per_epoch == 2 * 4 + 4
    row = built.train[0]["input_ids"].tolist()
    assert row[:9] == row[10:19]


def test_the_decoder_learns_prompts_and_completions(tmp_path: Path) -> None:
    train = write_records(
        tmp_path / "a.jsonl", [{"prompt": "12+", "completion": "34"}, {"prompt": "", "completion": "5"}]
    )
    built = build_parts(recipe(tmp_path, TASK, DECODER, train=[train], context=16))
    batch = batch_of(built, [0, 1])
    assert batch["labels"].tolist() == [[-100, -100, 51, 52, 256, -100, -100, -100], [256, *[-100] * 7]]
    with pytest.raises(ConfigError, match="of kind decoder would mix"):
        build_parts(recipe(tmp_path, TASK, DECODER, train=[train], packing="packed"))


def test_instructions_become_a_chat_where_the_tokenizer_has_a_template(tmp_path: Path) -> None:
    train = write_records(tmp_path / "a.jsonl", [{"instruction": "do", "input": "x", "output": "y"}])
    loaded = load_rows(recipe(tmp_path, TASK, DECODER, train=[train]))
    assert loaded.template is None and loaded.form is not None and loaded.form.has_instruction
    byte_level(tmp_path / "own", template="{% for message in messages %}{{ message.content }}{% endfor %}")
    loaded = load_rows(recipe(tmp_path, TASK, DECODER, train=[train], tokenizer=str(tmp_path / "own")))
    assert loaded.template is not None and loaded.template.where.endswith("own/chat_template.jinja")


def test_preferences(tmp_path: Path, llama: dict[str, Any]) -> None:
    pairs = [{"prompt": "p" * row, "chosen": "yes", "rejected": "n"} for row in (1, 2)]
    train = write_records(tmp_path / "a.jsonl", pairs)
    loaded = load_rows(recipe(tmp_path, "preference", llama, train=[train]))
    assert (
        loaded.form is not None
        and loaded.form.reason == "the rows have prompt and chosen and rejected: a prompt with two answers"
    )
    with pytest.raises(DataError, match=r"does not learn from pairs\n.*task\.kind to preference"):
        build_parts(recipe(tmp_path, TASK, llama, train=[train]))


def turns(user: str, assistant: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


def test_a_pair_that_cannot_be_read_is_left_out_and_listed(
    tmp_path: Path, llama: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    pairs = [{"chosen": turns("a" * (row + 1), "good"), "rejected": turns("a" * (row + 1), "bad")} for row in range(40)]
    pairs[7]["rejected"] = turns("something else", "bad")
    train = write_records(tmp_path / "a.jsonl", pairs)
    held_out = write_records(tmp_path / "b.jsonl", pairs[:3])
    settings = {"train": [train], "eval": [held_out], "template": "chatml", "context": 64}
    with caplog.at_level(logging.WARNING, "drumline"):
        built = build_parts(recipe(tmp_path, "preference", llama, **settings))
    assert len(built.train) == 39 and built.options.get("eval_data") is not None
    assert "data.train: 1 of 40 rows cannot be encoded; the first is row 7: chosen and rejected do not begin alike" in (
        caplog.text
    )
    batch = batch_of(built, [6, 7, 38])
    tokenizer = load_tokenizer(llama["path"])
    for name, answer in (("chosen", "good"), ("rejected", "bad")):
        part: Any = batch[name]
        assert len(part["labels"]) == 3
        assert all(answer in tokenizer.decode(labels[labels != -100].tolist()) for labels in part["labels"])
    with pytest.raises(DataError, match="1 of 40 rows cannot be encoded"):
        build_parts(recipe(tmp_path, "preference", llama, **settings, bad_rows="stop"))


def test_pairs_of_one_update_are_of_similar_length(tmp_path: Path, llama: dict[str, Any]) -> None:
    answers = [("yes" * (1 + 7 * row % 40), "n" * (1 + 3 * row % 40)) for row in range(40)]
    pairs = [{"prompt": "p", "chosen": chosen, "rejected": rejected} for chosen, rejected in answers]
    train = write_records(tmp_path / "a.jsonl", pairs)
    built = build_parts(recipe(tmp_path, "preference", llama, train=[train], context=160))
    batches: list[Any] = [batch_of(built, [row]) for row in range(3)]
    longest = [len(batch["chosen"]["labels"][0]) for batch in batches]
    assert longest == [8, 32, 48], "filled up to a multiple of 8"
    order = built.train.epoch_order(0, 0, shuffle=True)
    lengths = built.train.lengths[order].reshape(-1, 2)
    assert sorted(order.tolist()) == list(range(40)) and abs(lengths[:, 0] - lengths[:, 1]).max() <= 12
    apart = build_parts(recipe(tmp_path, "preference", llama, train=[train], context=160, group_by_length=False))
    assert isinstance(apart.train, PairRows)


@pytest.mark.parametrize(
    ("rows", "section", "error", "what"),
    [
        ([{"messages": chats(1)[0]["messages"]}], {}, ConfigError, r"has no chat template.*\n.*chatml, gemma"),
        ([{"messages": chats(1)[0]["messages"]}], {"template": "chatlm"}, ConfigError, r"'chatlm' is neither"),
        ([{"body": "a"}], {}, DataError, r"'body', and no row format.*\n.*columns\.text=body"),
        ([{"text": "a", "messages": []}], {"row_format": "chat"}, DataError, "messages should hold lists"),
        (
            [{"messages": [{"role": "user", "content": "secret"}]}],
            {"template": "chatml"},
            DataError,
            "in no row is there a token to learn",
        ),
        (
            [{"messages": [{"role": "tool", "content": "secret"}]}],
            {"template": "llama2"},
            DataError,
            r"row 0: .*turns of user and assistant alternate",
        ),
    ],
)
def test_rows_that_cannot_be_learned_from(
    tmp_path: Path, llama: dict[str, Any], rows: list[Any], section: dict[str, Any], error: type[Exception], what: str
) -> None:
    train = write_records(tmp_path / "a.jsonl", rows)
    with pytest.raises(error, match=what) as raised:
        build_parts(recipe(tmp_path, TASK, llama, train=[train], **section))
    assert "secret" not in str(raised.value)


def test_data_sets_of_the_package_read_at_once_or_as_they_come(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"text": ["abc", "d"], "n": [1, 2]})
    rows.save_to_disk(str(tmp_path / "saved"))
    section = {"kind": "datasets", "path": str(tmp_path / "saved"), "cache_dir": str(tmp_path / "cache")}
    at_once = build_parts(recipe(tmp_path, TASK, DECODER, context=16, **section))
    assert batch_of(at_once, [0, 1])["labels"][:, :4].tolist() == [[98, 99, 256, -100], [256, *[-100] * 3]]
    stream = build_parts(recipe(tmp_path, TASK, DECODER, context=16, streaming=True, **section))
    found = [row["labels"].tolist() for row in stream.train]
    assert found == [[98, 99, 256, -100], [256, -100]]


def test_rows_of_an_update_that_do_not_depend_on_the_machine(tmp_path: Path) -> None:
    per_gpu = {"batch_size_per_gpu": 3, "gradient_accumulation_steps": 2, "max_steps": 1}
    config = config_from_mapping({"train": per_gpu}, "this test")
    assert window_of(config) == 6
    assert window_of(recipe(tmp_path, TASK, DECODER, train=["a"])) == 2


def test_packing_is_worth_it_from_some_updates_on(tmp_path: Path) -> None:
    train = write_records(tmp_path / "a.jsonl", [{"text": "abc"}] * 64)
    built = build_parts(recipe(tmp_path, TASK, DECODER, train=[train], context=4))
    rows = built.train.rows
    assert too_few(rows, 8, 4) == "" and too_few(rows, 64, 400) == ""
    assert (
        too_few(rows, 8, 8) == "packed into rows of 8 tokens, an epoch would have about 4.0 updates of 8: fewer than 8"
    )
    assert json.loads((rows.folder / "header.json").read_text())["num_tokens"] == 256
