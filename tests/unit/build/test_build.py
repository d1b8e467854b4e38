"""A recipe's parts, put together."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from drumline.build.parts import Built, bound, build_parts, data_event, first_batch, keep
from drumline.config.schema import RunConfig
from drumline.data.features import Prepared, PreparedStream
from drumline.data.source import as_source
from drumline.errors import ConfigError, DataError
from drumline.models.cnn import Cnn
from drumline.models.ngrams import Ngrams
from drumline.rundir import RunDir, write_json
from tests.unit.build.data import TEXTS, recipe, write_images, write_records

NGRAMS = {"kind": "ngrams", "width": 4, "num_buckets": 50}
WORDS = [{"tokens": ["call", "me"], "tags": ["O", "X"]}, {"tokens": ["Ann"], "tags": ["X"]}]
TINY = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
    "vocab_size": 264,
    "pad_token_id": 3,
}


@pytest.fixture(autouse=True)
def import_system() -> Iterator[None]:
    """What a user's file leaves behind is taken back."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("my_"):
            del sys.modules[name]


def bert(folder: Path, **changes: Any) -> dict[str, Any]:
    """A model section for a tiny BERT with random weights, whose rows are bytes."""
    transformers.BertConfig(**{**TINY, **changes}).save_pretrained(folder / "bert")
    return {"kind": "huggingface", "path": str(folder / "bert"), "random_weights": True}


def learns(built: Built) -> dict[str, Any]:
    """Train on one batch of all rows once; returns the batch."""
    first_batch(built)
    source = as_source(built.train, built.options.get("collate"))
    batch: dict[str, Any] = source.collate([source.rows[row] for row in range(len(source.rows))])  # type: ignore[arg-type]
    task: Any = built.options["loss"]
    task.check(batch)
    assert task.count(batch) > 0
    total = task.loss(task.forward(built.model, batch), batch).total
    total.backward()
    assert torch.isfinite(total)
    assert any(p.grad is not None and bool(p.grad.any()) for p in built.model.parameters())
    return batch


def test_texts_into_classes(tmp_path: Path) -> None:
    train = write_records(tmp_path / "a.jsonl", TEXTS)
    built = build_parts(recipe(tmp_path, "classification", NGRAMS, train=[train], eval=[], context=12))
    assert isinstance(built.model, Ngrams) and isinstance(built.train, Prepared)
    batch = learns(built)
    assert batch["input_ids"].shape == (4, 12)  # 16 would be more than the context
    assert batch["labels"].tolist() == [0, 1, 0, 1]


def test_texts_into_classes_are_grouped_by_length_where_that_is_asked_for(tmp_path: Path) -> None:
    files = [
        write_records(
            tmp_path / f"{name}.jsonl", [{"text": name * (9 * row % 41 + 1), "label": name} for row in range(40)]
        )
        for name in "ab"
    ]
    section = {"train": [{"paths": [files[0]], "weight": 2.0}, files[1]], "eval_fraction": 0.1, "group_by_length": True}
    built = build_parts(recipe(tmp_path, "classification", NGRAMS, **section, context=64))
    order = built.train.epoch_order(0, 0, shuffle=True)
    assert built.train.rows_per_epoch == len(order) > len(built.train) > 60
    assert len(set(order.tolist())) == len(built.train)

    def padding(order: list[int]) -> int:
        tokens = [len(row["input_ids"]) for row in built.train.__getitems__(order)]
        return sum(abs(one - other) for one, other in zip(tokens[::2], tokens[1::2], strict=False))

    assert 0 < padding(order.tolist()) < 0.2 * padding(np.random.default_rng(0).permutation(order).tolist())
    assert order.tolist() != built.train.epoch_order(0, 1, shuffle=True).tolist()
    apart = built.train.epoch_order(0, 0, shuffle=False)
    assert (apart[1:] > apart[:-1]).sum() >= len(apart) - 2  # as they come


def test_what_is_no_text_is_not_grouped_by_length(tmp_path: Path) -> None:
    rows = [{"x": 1.0, "label": "A"}, {"x": 2.0, "label": "B"}]
    section = {"train": [write_records(tmp_path / "a.jsonl", rows)], "group_by_length": True}
    with pytest.raises(ConfigError, match="the task reads numbers, no texts"):
        build_parts(recipe(tmp_path, "classification", own(tmp_path), **section))


def test_random_weights_follow_the_seed(tmp_path: Path) -> None:
    train = write_records(tmp_path / "a.jsonl", TEXTS)
    config = recipe(tmp_path, "classification", NGRAMS, train=[train])
    first, again = build_parts(config).model.state_dict(), build_parts(config).model.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = build_parts(config.model_copy(update={"seed": 1})).model.state_dict()
    assert not torch.equal(first["vectors.weight"], other["vectors.weight"])


def test_images_are_moved_in_training_only(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "set")
    section = {"kind": "image_folders", "train": [folder], "eval": [folder], "size": 8, "channels": 1, "shift": 3}
    built = build_parts(recipe(tmp_path, "classification", {"kind": "cnn", "width": 4, "num_stages": 1}, **section))
    assert isinstance(built.model, Cnn)
    batch = learns(built)
    assert batch["pixel_values"].shape == (4, 1, 8, 8)
    settings = [data._features._pixels._settings.shift for data in (built.train, built.options["eval_data"])]
    assert settings == [3, 0]


@pytest.mark.parametrize(
    ("task", "records", "names"),
    [
        ("classification", TEXTS, {"input_ids", "attention_mask", "labels"}),
        ("multi_label", [{"text": "a", "label": ["x", "y"]}, {"text": "b", "label": []}], None),
        ("regression", [{"text": "a", "label": 1}, {"text": "b", "label": 2.5}], None),
        ("token_classification", WORDS, {"input_ids", "attention_mask", "labels"}),
        ("contrastive", [{"anchor": "a", "positive": "b"}, {"anchor": "c", "positive": "d"}], {"anchor", "positive"}),
    ],
)
def test_a_hugging_face_encoder_learns_every_task_on_texts(
    tmp_path: Path, task: str, records: list[dict[str, Any]], names: set[str] | None
) -> None:
    train = write_records(tmp_path / "a.jsonl", records)
    built = build_parts(recipe(tmp_path, task, bert(tmp_path), train=[train], tokenizer="byte", context=32))
    batch = learns(built)
    assert names is None or set(batch) == names


def test_a_hugging_face_model_knows_the_classes_and_its_padding_id(tmp_path: Path) -> None:
    train = write_records(tmp_path / "a.jsonl", [*TEXTS, {"text": "x", "label": "B"}])
    built = build_parts(recipe(tmp_path, "classification", bert(tmp_path), train=[train], tokenizer="byte", context=32))
    settings: Any = built.model.config
    assert (settings.id2label, settings.label2id) == ({0: "A", 1: "B"}, {"A": 0, "B": 1})
    assert settings.problem_type == "single_label_classification"
    assert learns(built)["input_ids"][4, -1] == TINY["pad_token_id"]


def test_two_texts_are_told_apart_by_a_model_that_has_types(tmp_path: Path) -> None:
    train = write_records(tmp_path / "a.jsonl", [{**record, "text_pair": "yes"} for record in TEXTS])
    section = {"train": [train], "tokenizer": "byte", "context": 32, "columns": {"text_pair": "text_pair"}}
    assert set(learns(build_parts(recipe(tmp_path, "classification", bert(tmp_path), **section)))) == {
        "input_ids",
        "attention_mask",
        "token_type_ids",
        "labels",
    }
    assert "token_type_ids" not in learns(build_parts(recipe(tmp_path, "classification", NGRAMS, **section)))


def test_sequence_to_sequence(tmp_path: Path) -> None:
    shape = transformers.T5Config(
        vocab_size=264, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    shape.save_pretrained(tmp_path / "t5")
    model = {"kind": "huggingface", "path": str(tmp_path / "t5"), "random_weights": True}
    train = write_records(tmp_path / "a.jsonl", [{"source": "abc", "target": "d"}, {"source": "e", "target": "fgh"}])
    batch = learns(build_parts(recipe(tmp_path, "sequence_to_sequence", model, train=[train], tokenizer="byte")))
    assert batch["labels"].tolist() == [[100, *[-100] * 7], [102, 103, 104, *[-100] * 5]]


def test_next_tokens_of_records(tmp_path: Path) -> None:
    train = write_records(tmp_path / "a.jsonl", TEXTS)
    model = {"kind": "decoder", "num_layers": 1, "num_heads": 2, "width": 8}
    batch = learns(build_parts(recipe(tmp_path, "language_modelling", model, train=[train], context=16)))
    assert batch["input_ids"].shape == (4, 16) and batch["labels"][0, 11:].tolist() == [-100] * 5


def test_rows_that_are_longer_than_the_model_has_positions(tmp_path: Path) -> None:
    train = write_records(tmp_path / "a.jsonl", TEXTS)
    section = {"train": [train], "tokenizer": "byte", "context": 33}
    with pytest.raises(ConfigError, match=r"data\.context is 33, the model in .* has 32 positions"):
        build_parts(recipe(tmp_path, "classification", bert(tmp_path), **section))


def test_images_of_another_size_than_the_model_takes(tmp_path: Path) -> None:
    shape = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=8, patch_size=4
    )
    shape.save_pretrained(tmp_path / "vit")
    model = {"kind": "huggingface", "path": str(tmp_path / "vit"), "random_weights": True}
    section = {"kind": "image_folders", "train": [write_images(tmp_path / "set")]}
    learns(build_parts(recipe(tmp_path, "classification", model, size=8, **section)))
    with pytest.raises(ConfigError, match=r"data\.size is 16, the model takes 8\n  fix: set data\.size to 8"):
        build_parts(recipe(tmp_path, "classification", model, size=16, **section))
    with pytest.raises(ConfigError, match=r"data\.channels is 1, the model takes 3"):
        build_parts(recipe(tmp_path, "classification", model, size=8, channels=1, **section))


def test_what_cannot_go_together_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="decoder has no output for classification"):
        build_parts(recipe(tmp_path, "classification", {"kind": "decoder"}, train=["absent.csv"]))


OWN = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self, num_outputs):
        super().__init__()
        self.layer = nn.Linear(2, num_outputs)
    def forward(self, numbers):
        return self.layer(numbers)

def make_model(config, data):
    return Own(data.num_outputs or 1)
"""


def own(folder: Path, more: str = "") -> dict[str, Any]:
    (folder / "my_own.py").write_text(OWN + more)
    return {"kind": "python", "file": str(folder / "my_own.py")}


def test_a_users_model_on_columns_of_numbers(tmp_path: Path) -> None:
    records = [{"x": 1, "y": 0.5, "label": "a"}, {"x": 2, "y": 1, "label": "b"}]
    train = write_records(tmp_path / "a.jsonl", records)
    batch = learns(build_parts(recipe(tmp_path, "classification", own(tmp_path), train=[train])))
    assert batch["numbers"].tolist() == [[1.0, 0.5], [2.0, 1.0]]


def test_a_users_loss_gets_the_columns_and_his_optimizer_is_taken(tmp_path: Path) -> None:
    more = (
        "def loss(model, batch): return (model(torch.stack([batch['x'], batch['y']], 1))[:, 0] - batch['z']).mean()\n"
        "def make_optimizer(model): return torch.optim.SGD(model.parameters(), lr=0.1)\n"
    )
    train = write_records(tmp_path / "a.jsonl", [{"x": 1.5, "y": 2.5, "z": 3, "name": "n"}])
    built = build_parts(recipe(tmp_path, "language_modelling", own(tmp_path, more), train=[train]))
    first_batch(built)
    source = as_source(built.train, built.options["collate"])
    batch = source.collate([built.train[0]])
    loss: Any = built.options["loss"]
    assert loss(built.model, batch).dim() == 0 and batch["name"] == ["n"]
    make_optimizer: Any = built.options["optimizer"]
    assert isinstance(make_optimizer(built.model), torch.optim.SGD)


def test_a_users_own_data(tmp_path: Path) -> None:
    more = (
        "def make_data(config): return [torch.ones(2)] * 4, None\ndef loss(model, batch): return model(batch).mean()\n"
    )
    model = own(tmp_path, more)
    built = build_parts(RunConfig.model_validate({"model": model}))
    assert (len(built.train), built.options["eval_data"], built.loaded) == (4, None, None)
    with pytest.raises(ConfigError, match="defines make_data, and the recipe has a data section"):
        build_parts(recipe(tmp_path, "classification", model, train=["a.csv"]))


def test_data_without_labels_is_refused_for_a_file_without_a_loss(tmp_path: Path) -> None:
    section = {"kind": "text", "train": ["a.txt"]}
    with pytest.raises(ConfigError, match=r"classification needs more than data\.kind text gives"):
        build_parts(recipe(tmp_path, "classification", own(tmp_path), **section))


def test_a_stream_is_prepared_as_it_comes(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["a", "b"])})
    rows = datasets.Dataset.from_dict({"text": ["p", "q"], "label": [1, 0]}, features=features)
    rows.save_to_disk(str(tmp_path / "saved"))
    section = {"kind": "datasets", "path": str(tmp_path / "saved"), "streaming": True}
    built = build_parts(recipe(tmp_path, "classification", NGRAMS, **section))
    assert isinstance(built.train, PreparedStream)
    first_batch(built)
    assert [int(row["labels"]) for row in built.train] == [1, 0]


def test_what_the_data_holds_is_kept_with_the_names_of_the_classes(tmp_path: Path) -> None:
    train = write_records(tmp_path / "a.jsonl", TEXTS * 10)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("{broken\n")
    held_out = write_records(tmp_path / "b.jsonl", TEXTS[:2])
    run = RunDir.create(tmp_path / "run")
    built = build_parts(recipe(tmp_path, "classification", NGRAMS, train=[train], eval=[held_out]))
    assert built.loaded is not None
    keep(run, data_event(built.loaded))
    [event] = [json.loads(line) for line in run.events.read_text().splitlines()]
    assert (event["event"], event["classes"]) == ("data", ["A", "B"])
    assert (event["train"]["rows"], event["train"]["bad_rows"], event["eval"]["rows"]) == (40, 1, 2)
    assert event["train"]["columns"]["label"] == "text (2 different)"
    [listed] = event["train"]["bad_rows_files"]
    assert "{broken" in Path(listed).read_text()


def test_an_image_that_ends_too_early_is_found_by_the_first_batch(tmp_path: Path) -> None:
    folder = Path(write_images(tmp_path / "set"))
    image = folder / "cat" / "0.png"
    image.write_bytes(image.read_bytes()[:45])
    built = build_parts(
        recipe(tmp_path, "classification", {"kind": "cnn"}, kind="image_folders", train=[str(folder)], channels=1)
    )
    with pytest.raises(DataError, match=r"data\.train, row 0: the image .*0\.png cannot be read"):
        first_batch(built)


def test_the_batch_that_rows_are_grouped_by_is_that_of_the_run(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    config = RunConfig.model_validate({"train": {"batch_size_per_gpu": 3, "gradient_accumulation_steps": 2}})
    assert bound(config, run).train.global_batch == 6
    write_json(run.plan, {"global_batch": 24})  # it began on four
    assert bound(config, run).train.global_batch == 24
    stated = RunConfig.model_validate({"train": {"global_batch": 5}})
    assert bound(stated, run) is stated
