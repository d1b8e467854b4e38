"""The data section as rows, before there is a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import tokenizers

from drumline.build.rows import load_rows, read_columns, tokenizer_name
from drumline.config.schema import RunConfig
from drumline.data.row_formats import RowFormat
from drumline.data.schema import Column, Schema
from drumline.errors import ConfigError, DataError
from tests.unit.build.data import TEXTS, recipe, write_images, write_records

NGRAMS = {"kind": "ngrams"}


def test_a_recipe_needs_a_data_section() -> None:
    with pytest.raises(ConfigError, match="no data section"):
        load_rows(RunConfig())


def test_text_and_classes_from_records(tmp_path: Path) -> None:
    train = write_records(tmp_path / "a.jsonl", TEXTS)
    loaded = load_rows(recipe(tmp_path, "classification", NGRAMS, train=[train], context=12))
    assert (loaded.reads, loaded.facts.classes, loaded.facts.num_outputs) == ("text", ("A", "B"), 2)
    assert (loaded.facts.vocab_size, loaded.facts.context) == (257, 12)


def test_a_column_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    train = write_records(tmp_path / "a.jsonl", [{"body": "x", "topic": "y"}])
    with pytest.raises(DataError, match=r"'text' or 'label'.*'body', 'topic'\n  fix: .*data\.columns\.text=body"):
        load_rows(recipe(tmp_path, "classification", NGRAMS, train=[train]))


def test_a_held_out_label_that_training_lacks_is_named_with_its_row(tmp_path: Path) -> None:
    train = write_records(tmp_path / "a.jsonl", TEXTS)
    held_out = write_records(tmp_path / "b.jsonl", [TEXTS[0], {"text": "call me Cid", "label": "C"}])
    with pytest.raises(DataError, match=r"data\.eval, row 1: the label 'C' is none of the 2 classes"):
        load_rows(recipe(tmp_path, "classification", NGRAMS, train=[train], eval=[held_out]))


def test_a_label_that_is_no_class_is_named_with_its_row(tmp_path: Path) -> None:
    train = write_records(tmp_path / "a.jsonl", [*TEXTS, {"text": "call me", "label": 0.5}])
    with pytest.raises(DataError, match=r"column 'label', row 4: the label 0\.5 is no class\n.*regression"):
        load_rows(recipe(tmp_path, "classification", NGRAMS, train=[train]))


def test_more_classes_than_the_schema_keeps(tmp_path: Path) -> None:
    train = write_records(tmp_path / "a.jsonl", [{"text": "x", "label": number} for number in range(1100)])
    loaded = load_rows(recipe(tmp_path, "classification", NGRAMS, train=[train]))
    assert loaded.classes is not None and len(loaded.classes) == 1100


@pytest.mark.parametrize("labels", [[["b"], [], ["c", "b"]], ['["b"]', "[]", '["c", "b"]']])
def test_several_classes_a_row(tmp_path: Path, labels: list[Any]) -> None:
    train = write_records(tmp_path / "a.jsonl", [{"text": "x", "label": label} for label in labels])
    loaded = load_rows(recipe(tmp_path, "multi_label", NGRAMS, train=[train], eval=[]))
    assert loaded.facts.classes == ("b", "c")


def test_rows_with_equal_texts_are_on_one_side_whatever_their_ids_and_labels(tmp_path: Path) -> None:
    rows = [{"id": number, "text": f"row {number % 20}", "label": "ab"[number // 20 % 2]} for number in range(80)]
    train = write_records(tmp_path / "a.jsonl", rows)
    loaded = load_rows(recipe(tmp_path, "classification", NGRAMS, train=[train], eval_fraction=0.2))
    assert loaded.evaluation is not None and len(loaded.evaluation) == 16
    sides = [
        {row["text"] for row in (part[place] for place in range(len(part)))}
        for part in (loaded.train, loaded.evaluation)
    ]
    assert not sides[0] & sides[1]


@pytest.mark.parametrize(
    ("task", "form", "columns"),
    [
        ("classification", None, ("text", "text_pair")),
        ("token_classification", None, ("tokens",)),
        ("language_modelling", RowFormat("text", "", ("text",)), ("text",)),
        ("language_modelling", RowFormat("chat", "", ("messages",)), ("messages", "system", "input", "tools")),
    ],
)
def test_columns_that_make_a_row(tmp_path: Path, task: str, form: RowFormat | None, columns: tuple[str, ...]) -> None:
    names = ("id", "label", "tags", "tokens", "text", "text_pair", "messages", "system", "input", "tools")
    schema, config = (
        Schema({name: Column({"text": 1}) for name in names}, 1),
        recipe(tmp_path, task, NGRAMS, train=["a"]),
    )
    assert read_columns(config, schema, False, form) == columns
    assert read_columns(config, schema, True, None) == ()


def test_numbers_to_predict(tmp_path: Path) -> None:
    one = write_records(tmp_path / "a.jsonl", [{"text": "x", "label": 1.5}])
    two = write_records(tmp_path / "b.jsonl", [{"text": "x", "label": [1, 2]}])
    assert load_rows(recipe(tmp_path, "regression", NGRAMS, train=[one])).facts.num_targets == 1
    assert load_rows(recipe(tmp_path, "regression", NGRAMS, train=[two])).facts.num_targets == 2


def test_images(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "set")
    config = recipe(
        tmp_path, "classification", {"kind": "cnn"}, kind="image_folders", train=[folder], size=4, channels=1
    )
    loaded = load_rows(config)
    assert (loaded.reads, loaded.facts.classes) == ("image", ("cat", "dog"))
    assert (loaded.facts.channels, loaded.facts.size, loaded.tokenizer) == (1, 4, None)


def test_classes_that_a_data_set_of_the_package_names_itself(tmp_path: Path) -> None:
    features = datasets.Features({"text": datasets.Value("string"), "kind": datasets.ClassLabel(names=["z", "a"])})
    rows = datasets.Dataset.from_dict({"text": ["p", "q"], "kind": [0, 0]}, features=features)
    datasets.DatasetDict({"train": rows}).save_to_disk(str(tmp_path / "saved"))
    for streaming in (False, True):
        section = {"kind": "datasets", "path": str(tmp_path / "saved"), "columns": {"label": "kind"}}
        loaded = load_rows(recipe(tmp_path, "classification", NGRAMS, streaming=streaming, **section))
        assert (loaded.reads, loaded.facts.classes) == ("text", ("z", "a"))


def test_a_stream_whose_classes_nobody_knows_is_refused(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"text": ["p", "q"], "label": ["a", "b"]})
    rows.save_to_disk(str(tmp_path / "saved"))
    section = {"kind": "datasets", "path": str(tmp_path / "saved")}
    assert load_rows(recipe(tmp_path, "classification", NGRAMS, **section)).facts.classes == ("a", "b")
    with pytest.raises(ConfigError, match=r"'label' of a stream are not known.*\n.*data\.streaming to false"):
        load_rows(recipe(tmp_path, "classification", NGRAMS, streaming=True, **section))


def test_a_model_of_ones_own_may_read_columns_of_numbers_or_all_columns(tmp_path: Path) -> None:
    own = {"kind": "python", "file": "model.py"}
    records = [{"x": 1, "y": 0.5, "note": "n", "label": "a"}, {"x": 2, "y": 1, "note": "m", "label": "b"}]
    train = write_records(tmp_path / "a.jsonl", records)
    loaded = load_rows(recipe(tmp_path, "classification", own, train=[train]))
    assert (loaded.reads, loaded.facts.columns, loaded.facts.classes) == ("numbers", ("x", "y"), ("a", "b"))
    loaded = load_rows(recipe(tmp_path, "language_modelling", own, train=[train]), own_loss=True)
    assert (loaded.reads, loaded.facts.columns) == ("columns", ("x", "y", "note", "label"))
    texts = write_records(tmp_path / "b.jsonl", TEXTS)
    assert load_rows(recipe(tmp_path, "classification", own, train=[texts])).reads == "text"
    words = write_records(tmp_path / "c.jsonl", [{"note": "n", "label": "a"}, {"note": "m", "label": "b"}])
    with pytest.raises(DataError, match="'text'"):
        load_rows(recipe(tmp_path, "classification", own, train=[words]))


def test_the_tokenizer_is_the_models_own_unless_another_is_named(tmp_path: Path) -> None:
    pretrained = {"kind": "huggingface", "path": "some/where"}
    assert tokenizer_name(recipe(tmp_path, "classification", NGRAMS, train=["a.csv"])) == "byte"
    assert tokenizer_name(recipe(tmp_path, "classification", pretrained, train=["a.csv"])) == "some/where"
    assert tokenizer_name(recipe(tmp_path, "classification", pretrained, train=["a.csv"], tokenizer="byte")) == "byte"


def test_text_files_are_read_with_the_models_own_tokenizer_too(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<|endoftext|>": 0, "sea": 1, "whale": 2}, "sea"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("whale sea sea whale")
    pretrained = {"kind": "huggingface", "path": str(tmp_path / "model")}
    section = {"kind": "text", "train": [str(tmp_path / "a.txt")], "context": 2, "cache_dir": tmp_path / "cache"}
    loaded = load_rows(recipe(tmp_path, "language_modelling", pretrained, **section))
    assert loaded.facts.vocab_size == 3
    assert loaded.train[0]["input_ids"].tolist() == [2, 1]
    bytes_of = load_rows(recipe(tmp_path, "language_modelling", pretrained, **section, tokenizer="byte"))
    assert bytes_of.facts.vocab_size == 257
