"""The report on the data before training, for each kind of task and data."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drumline.build.data_report import token_rows_in
from drumline.build.parts import build_parts, data_events, keep
from drumline.data.document_packing import packed
from drumline.data.length_order import ByLength
from drumline.data.mixture import Mixture
from drumline.data.token_row_cache import Encoding, token_rows
from drumline.rundir import RunDir, read_lines
from tests.unit.build.data import TEXTS, recipe, write_images, write_records

NGRAMS = {"kind": "ngrams", "width": 4, "num_buckets": 50}


def told(tmp_path: Path, task: str, model: dict[str, Any], **data: Any) -> dict[str, Any]:
    """The report on this data as an event; {} where there is none."""
    config = recipe(tmp_path, task, model, **data)
    run = RunDir.create(tmp_path / "run")
    keep(run, *data_events(config, build_parts(config), run))
    return next(iter(reports(run)), {})


def reports(run: RunDir) -> list[dict[str, Any]]:
    return [line for line in read_lines(run.events) if line["event"] == "data_report"]


def own(folder: Path) -> dict[str, Any]:
    """A model section for a model of one's own, which is never run."""
    file = folder / "my_model.py"
    file.write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.weight = torch.nn.Parameter(torch.zeros(1))\n"
        "    def forward(self, **inputs):\n        return inputs\n"
        "def make_model(config, facts):\n    return Model()\n"
    )
    return {"kind": "python", "file": str(file)}


def test_classification(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = write_records(tmp_path / "a.jsonl", [*TEXTS, TEXTS[0], {"text": "", "label": "A"}])
    held_out = write_records(tmp_path / "b.jsonl", [TEXTS[1], {"text": "call me later", "label": "B"}])
    with caplog.at_level(logging.INFO):
        event = told(tmp_path, "classification", NGRAMS, train=[train], eval=[held_out], context=8)
    assert (event["event"], event["rank"]) == ("data_report", 0)
    assert event["train"]["labels"] == {"A": 4, "B": 2}
    assert (event["train"]["duplicates"], event["train"]["empty"], event["train"]["first_empty"]) == (1, 1, 5)
    assert event["train"]["encodings"] == {"UTF-8": 1}
    assert event["train"]["tokens"]["num_cut"] == 5
    assert event["leakage"] == {"rows": 1, "rows_normalised": 1, "examples": [[0, 1]]}
    assert event["labels_only_in_train"] == ["A"]
    lines = [record.getMessage() for record in caplog.records if record.name == "drumline.build"]
    assert any(line.startswith("data report") for line in lines)
    assert any(line.startswith("data.eval: 1 row is in data.train too") for line in lines)


def test_it_is_told_once_a_run_and_not_where_it_is_not_wanted(tmp_path: Path) -> None:
    train = write_records(tmp_path / "a.jsonl", TEXTS)
    config = recipe(tmp_path, "classification", NGRAMS, train=[train])
    run = RunDir.create(tmp_path / "run")
    built = build_parts(config)
    keep(run, *data_events(config, built, run))
    keep(run, *data_events(config, built, run))
    assert len(reports(run)) == 1
    (tmp_path / "other").mkdir()
    assert told(tmp_path / "other", "classification", NGRAMS, train=[train], check=False) == {}


def test_texts_of_language_modelling(tmp_path: Path) -> None:
    train = write_records(tmp_path / "a.jsonl", [{"text": "call me"}, {"text": "Ishmael"}, {"text": "call me"}])
    model = {"kind": "decoder", "width": 8, "num_layers": 1, "num_heads": 1}
    event = told(tmp_path, "language_modelling", model, train=[train], context=64)
    assert event["train"]["duplicates"] == 1
    assert event["train"]["tokens"]["total"] == 3 * 8, "with the end of the document"
    assert "labels" not in event["train"] and "eval" not in event


def test_one_row(tmp_path: Path) -> None:
    train = write_records(tmp_path / "a.jsonl", [{"text": "call me"}])
    model = {"kind": "decoder", "width": 8, "num_layers": 1, "num_heads": 1}
    event = told(tmp_path, "language_modelling", model, train=[train], eval_fraction=0.5)
    assert (event["train"]["rows"], event["train"]["duplicates"], event["train"]["tokens"]["longest"]) == (1, 0, 8)


def test_chats_and_prompts_say_what_they_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = write_records(tmp_path / "a.jsonl", [{"prompt": "call me", "completion": f" {name}"} for name in "aab"])
    model = {"kind": "decoder", "width": 8, "num_layers": 1, "num_heads": 1}
    config = recipe(tmp_path, "language_modelling", model, train=[train])
    run, built = RunDir.create(tmp_path / "run"), build_parts(config)
    with caplog.at_level(logging.INFO):
        keep(run, *data_events(config, built, run))
    data, report = read_lines(run.events)
    assert (data["row_format"], data["template"]) == ("prompt_completion", None)
    assert "prompt and completion" in data["row_format_reason"] and data["row_format_reason"] in caplog.text
    assert report["train"]["duplicates"] == 1
    assert report["train"]["tokens"]["learned"] == pytest.approx(3 / 10)


def test_pairs_and_words(tmp_path: Path) -> None:
    pairs = write_records(
        tmp_path / "a.jsonl", [{"anchor": "ab", "positive": "abc"}, {"anchor": "ab", "positive": "x"}]
    )
    event = told(tmp_path, "contrastive", own(tmp_path), train=[pairs])
    assert (event["train"]["tokens"]["num_texts"], event["train"]["duplicates"]) == (4, 0)
    words = write_records(tmp_path / "b.jsonl", [{"tokens": ["call", "me"], "tags": ["O", "X"]}] * 2)
    (tmp_path / "words").mkdir()
    event = told(tmp_path / "words", "token_classification", own(tmp_path), train=[words])
    assert event["train"]["labels"] == {"O": 2, "X": 2}
    assert event["train"]["duplicates"] == 1


def test_images_have_labels_and_no_texts(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "set")
    event = told(tmp_path, "classification", {"kind": "cnn"}, kind="image_folders", train=[folder], channels=1)
    assert event["train"]["labels"] == {"cat": 2, "dog": 2}
    assert (event["train"]["duplicates"], event["train"]["empty"]) == (0, 0)


def test_images_of_the_package_datasets_are_not_opened_for_their_labels(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"image": datasets.Image(), "kind": datasets.ClassLabel(names=["cat", "dog"])})
    rows = {"image": [{"bytes": b"no image", "path": None}] * 3, "kind": [1, 0, 1]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "saved"))
    section = {"kind": "datasets", "path": str(tmp_path / "saved"), "columns": {"label": "kind"}, "channels": 1}
    event = told(tmp_path, "classification", {"kind": "cnn"}, **section)
    assert event["train"]["labels"] == {"dog": 2, "cat": 1}


def test_rows_of_numbers_that_come_again(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y,label\n1,2,a\n3,4,b\n1,2,b\n")
    event = told(tmp_path, "classification", own(tmp_path), train=[str(tmp_path / "a.csv")])
    assert (event["train"]["duplicates"], event["train"]["contradictory"]) == (1, 1)
    assert "tokens" not in event["train"]


def test_text_files_are_documents(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for name, text in (("a", "call me"), ("b", "Ishmael"), ("c", "call me"), ("d", "Ishmael")):
        (tmp_path / f"{name}.txt").write_text(text)
    train, held_out = [f"{tmp_path}/[abc].txt"], [f"{tmp_path}/d.txt"]
    model = {"kind": "decoder", "width": 8, "num_layers": 1, "num_heads": 1}
    cache = str(tmp_path / "cache")
    event = told(tmp_path, "language_modelling", model, kind="text", train=train, eval=held_out, cache_dir=cache)
    assert event["unit"] == "documents"
    assert "data.train: 3 documents, 21 tokens (7 to 7, median 7); 1 like an earlier one" in caplog.text
    assert (event["train"]["rows"], event["train"]["duplicates"], event["train"]["tokens"]["total"]) == (3, 1, 21)
    assert event["leakage"]["examples"] == [[0, 1]]


def test_text_files_of_which_a_share_is_held_out_are_documents_too(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("call me Ishmael")
    (tmp_path / "c.txt").write_text("call me later")
    model = {"kind": "decoder", "width": 8, "num_layers": 1, "num_heads": 1}
    section = {"kind": "text", "cache_dir": str(tmp_path / "cache"), "context": 4, "eval_fraction": 0.3}
    for number, more in enumerate(([], [{"paths": [f"{tmp_path}/c.txt"], "weight": 2.0}])):
        (tmp_path / str(number)).mkdir()
        train = [f"{tmp_path}/[ab].txt", *more]
        event = told(tmp_path / str(number), "language_modelling", model, train=train, **section)
        assert (event["train"]["rows"], event["train"]["duplicates"]) == (2 + len(more), 1)
        assert "leakage" not in event and "eval" not in event


def test_random_tokens_and_streams_are_not_looked_through(tmp_path: Path) -> None:
    model = {"kind": "decoder", "width": 8, "num_layers": 1, "num_heads": 1}
    assert told(tmp_path, "language_modelling", model, kind="random_tokens", num_rows=4, vocab_size=9, context=8) == {}


def test_tokens_on_disk_tell_all_rows_lengths(tmp_path: Path) -> None:
    def encode(record: Any) -> list[tuple[Any, Any]]:
        return [(np.arange(record["n"]), np.arange(record["n"]) > 1)]

    encoding = Encoding(encode, ["key"], 100, 8, tmp_path)
    rows = token_rows([{"n": 3}, {"n": 12}], encoding, "data.train")
    found = token_rows_in(rows)
    assert found is not None and [len(each) for each in found] == [2]
    assert token_rows_in(ByLength(rows, 2)) == found
    assert token_rows_in(packed(rows, 8)[0]) == found
    assert token_rows_in(Mixture([(rows, 1.0), (packed(rows, 8)[0], 2.0)])) == [rows, rows]
    others: Any = [{"n": 1}]
    assert token_rows_in(Mixture([(rows, 1.0), (others, 2.0)])) is None
    assert token_rows_in([{"n": 1}]) is None


def test_no_text_is_in_the_event(tmp_path: Path) -> None:
    train = write_records(
        tmp_path / "a.jsonl", [{"text": f"my sister Alma, {i}", "label": "ab"[i % 2]} for i in range(9)]
    )
    assert "Alma" not in json.dumps(told(tmp_path, "classification", NGRAMS, train=[train]))
