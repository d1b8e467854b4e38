"""Data sets of the package datasets: opened by name, and handed in as they are."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from drumline import TrainConfig, Trainer
from drumline.config.data import HuggingFaceData
from drumline.config.schema import RunConfig
from drumline.config.train import ScheduleConfig
from drumline.data.hugging_face import HuggingFaceRows, HuggingFaceStream, _opened, load_datasets
from drumline.data.loader import LoaderOptions
from drumline.data.order import Cut
from drumline.data.source import as_source
from drumline.data.stream import StreamFeed, StridedStream
from drumline.errors import ConfigError, DataError, MissingExtra
from tests.unit.data.counting import CountUnits, trained


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf_cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("KMP_DUPLICATE_LIB_OK", "True")  # scikit-learn, where the package imports it, sets this


def columns(count: int) -> dict[str, list[Any]]:
    return {"body": [f"text {i}" for i in range(count)], "topic": [i % 3 for i in range(count)]}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    splits = {"train": datasets.Dataset.from_dict(columns(10)), "test": datasets.Dataset.from_dict(columns(4))}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "saved"))
    return tmp_path / "saved"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    for split, count in ("train", 10), ("test", 4):
        rows = [{"body": f"text {i}", "topic": i % 3} for i in range(count)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "files" / f"{split}.jsonl").write_text(text)
    return tmp_path / "files"


NAMES = {"text": "body", "label": "topic"}


def test_one_column_alone_under_its_new_name(saved: Path) -> None:
    rows = load_datasets(HuggingFaceData(path=str(saved), columns=NAMES)).train
    assert rows.only("label")[4] == {"label": 1}
    assert len(rows.only("label")) == 10


@pytest.mark.parametrize("source", ["saved", "files"])
def test_rows_of_both_splits_with_columns_renamed(source: str, request: pytest.FixtureRequest) -> None:
    path = str(request.getfixturevalue(source))
    splits = load_datasets(HuggingFaceData(path=path, eval_split="test", columns=NAMES))
    assert isinstance(splits.train, HuggingFaceRows)
    assert (len(splits.train), splits.schema.num_rows) == (10, 10)
    assert splits.train[4] == {"text": "text 4", "label": 1}
    assert splits.train.__getitems__([9, 0]) == [{"text": "text 9", "label": 0}, {"text": "text 0", "label": 0}]
    assert splits.schema.describe() == "10 rows\ntext: text; label: whole number"
    assert splits.eval is not None
    assert [splits.eval[i]["text"] for i in range(4)] == [f"text {i}" for i in range(4)]
    assert pickle.loads(pickle.dumps(splits.train))[4] == {"text": "text 4", "label": 1}
    for index in (-1, 10):
        with pytest.raises(IndexError):
            splits.train[index]


@pytest.mark.parametrize("source", ["saved", "files"])
def test_a_stream_of_both_splits(source: str, request: pytest.FixtureRequest) -> None:
    path = str(request.getfixturevalue(source))
    splits = load_datasets(HuggingFaceData(path=path, eval_split="test", columns=NAMES, streaming=True))
    assert isinstance(splits.train, HuggingFaceStream)
    assert list(splits.train) == [{"text": f"text {i}", "label": i % 3} for i in range(10)]
    assert splits.schema.num_rows is None
    assert list(splits.schema.columns) == ["text", "label"]
    source_of = as_source(splits.train)
    assert source_of.is_stream and source_of.can_be_cut
    parts = [list(splits.train.shard(3, index)) for index in range(3)]
    assert sorted(row["text"] for part in parts for row in part) == [f"text {i}" for i in range(10)]
    assert all(parts)


def test_one_column_may_have_two_names_and_a_name_may_pass_to_another(saved: Path) -> None:
    config = HuggingFaceData(path=str(saved), columns={"anchor": "body", "positive": "body", "body": "topic"})
    assert load_datasets(config).train[1] == {"anchor": "text 1", "positive": "text 1", "body": 1}


def test_images_and_named_classes_are_kept(tmp_path: Path) -> None:
    images = [Image.new("RGB", (4, 4), (i, 0, 0)) for i in range(3)]
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "tags": datasets.List(datasets.ClassLabel(names=["a", "b", "c"])),
        }
    )
    given = {"image": images, "label": [0, 1, 1], "tags": [[0], [1, 2], []]}
    datasets.Dataset.from_dict(given, features=features).save_to_disk(str(tmp_path / "one"))
    splits = load_datasets(HuggingFaceData(path=str(tmp_path / "one")))
    assert splits.train[2]["image"].getpixel((0, 0)) == (2, 0, 0)
    assert splits.schema.columns["label"].names == ("cat", "dog")
    assert splits.schema.columns["tags"].names == ("a", "b", "c")
    assert [str(column) for column in splits.schema.columns.values()] == ["image", "whole number", "list"]
    with pytest.raises(DataError, match="saved as a single split"):
        load_datasets(HuggingFaceData(path=str(tmp_path / "one"), eval_split="test"))


@pytest.mark.parametrize("streaming", [True, False])
def test_what_is_not_there_is_named(saved: Path, files: Path, streaming: bool) -> None:
    def refused(path: Path, **settings: Any) -> str:
        with pytest.raises(DataError) as caught:
            load_datasets(HuggingFaceData(path=str(path), streaming=streaming, **settings))
        return str(caught.value)

    near = refused(files.parent / "file")
    assert "data.path" in near and "has files" in near
    assert "no split 'trian'; there are train, test" in refused(saved, train_split="trian")
    assert "data.eval_split=train" in refused(saved, eval_split="tst")
    assert "data.train_split" in refused(files, train_split="trian")
    assert "data.subset" in refused(files, subset="other")
    wrong = refused(files, columns={"label": "topc"})
    assert "the columns are 'body', 'topic'" in wrong
    assert "--set data.columns.label=topic" in wrong


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match="datasets"):
        load_datasets(HuggingFaceData(path=str(tmp_path)))


def numbers(count: int) -> Any:
    return datasets.Dataset.from_dict({"x": [float(i) for i in range(count)], "name": [f"r{i}" for i in range(count)]})


def test_a_map_style_data_set_can_be_handed_in() -> None:
    data: Any = numbers(5)
    source = as_source(data)
    assert source.rows is data
    assert (source.num_rows, source.rows_per_epoch, source.is_stream, source.can_be_cut) == (5, 5, False, True)
    batch = source.collate(numbers(5).with_format("torch").__getitems__([3, 1]))
    assert batch["x"].tolist() == [3.0, 1.0]
    assert batch["name"] == ["r3", "r1"]


def test_a_dictionary_of_splits_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"DatasetDict holds values by name \(train\)") as caught:
        as_source(datasets.DatasetDict({"train": numbers(3)}))
    assert "data['train']" in caught.value.fix


@pytest.mark.parametrize("num_parts", [1, 2, 3, 5])
def test_a_stream_is_cut_into_any_number_of_parts(num_parts: int) -> None:
    """It has three shards of its own; the package cuts it into at most so many."""
    source = as_source(numbers(10).to_iterable_dataset(num_shards=3))
    assert source.is_stream and source.can_be_cut
    assert source.rows_per_epoch is None
    rows: Any = source.rows
    parts = [[row["x"] for row in rows.shard(num_parts, index)] for index in range(num_parts)]
    assert sorted(x for part in parts for x in part) == [float(i) for i in range(10)]
    assert all(parts)
    if num_parts > 1:
        again = [row["x"] for index in range(2) for row in rows.shard(num_parts, 1).shard(2, index)]
        assert sorted(again) == sorted(parts[1])


def test_a_stream_is_shuffled_anew_each_epoch() -> None:
    rows: Any = as_source(numbers(20).to_iterable_dataset(num_shards=2).shuffle(seed=1, buffer_size=20)).rows
    orders = []
    for epoch in (0, 1, 0):
        rows.set_epoch(epoch)
        orders.append([row["x"] for row in rows])
    assert orders[0] == orders[2] != orders[1]
    assert isinstance(as_source(StridedStream(rows)).rows, StridedStream)


def squared_error(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    x = batch["x"][:, None]
    return nn.functional.mse_loss(model(x), 2 * x)


def fit(tmp_path: Path, data: Any, name: str) -> tuple[int, float]:
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    config = RunConfig.model_validate(
        {
            "run_dir": tmp_path / name,
            "train": TrainConfig(
                global_batch=4, lr=0.05, epochs=2, max_norm=None, schedule=ScheduleConfig(name="constant")
            ),
            "track": {"console": False},
            "loader": {"num_workers": 0},
        }
    )
    with Trainer(model, config, data, loss=squared_error) as trainer:
        result = trainer.fit()
    return result.steps, model.weight.item()


def test_training_on_a_map_style_data_set(tmp_path: Path) -> None:
    data = numbers(10)
    plain = [{"x": torch.tensor(row["x"]), "name": row["name"]} for row in data]
    steps, weight = fit(tmp_path, data.with_format("torch"), "hf")
    assert steps == 6
    assert (steps, weight) == fit(tmp_path, plain, "plain"), "the same rows in the same order"
    assert (steps, weight) != fit(tmp_path, data.select([0] * 10).with_format("torch"), "other")


def test_training_on_a_stream(tmp_path: Path) -> None:
    data = numbers(10).to_iterable_dataset(num_shards=3).with_format("torch")

    class Plain(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(data)

    steps, weight = fit(tmp_path, data, "hf")
    assert steps == 6
    assert (steps, weight) == fit(tmp_path, Plain(), "plain")


def test_a_stream_that_does_not_know_its_columns_is_asked_for_its_first_row() -> None:
    def generate() -> Iterator[dict[str, Any]]:
        yield {"body": "x", "topic": 1, "image": Image.new("L", (1, 1))}

    split = datasets.IterableDataset.from_generator(generate)
    assert split.features is None
    stream = _opened(split, {"label": "topic"}, "split 'train'")
    assert isinstance(stream, HuggingFaceStream)
    assert stream.schema.describe() == "rows as they come\nbody: text; image: image; label: whole number"
    assert [row["label"] for row in stream] == [1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_shuffled_stream_that_is_cut_has_a_new_order_each_epoch_and_is_found_again(num_workers: int) -> None:
    rows = datasets.Dataset.from_dict({"row": list(range(48)), "units": [1] * 48})
    stream = rows.to_iterable_dataset(num_shards=4).shuffle(seed=3, buffer_size=6)
    options = LoaderOptions(num_workers=num_workers, persistent_workers=True)
    feed = StreamFeed(as_source(stream), CountUnits(), options, Cut(4, 2, 1, 2), 5)
    try:
        orders = []
        for epoch in range(3):
            windows = list(islice(feed.epoch(epoch, 0), 12))
            assert trained(list(islice(feed.epoch(epoch, 5), 7))) == trained(windows[5:])
            orders.append(trained(windows))
    finally:
        feed.close()
    assert len({tuple(order) for order in orders}) == 3
    assert all(len(set(order)) == 24 for order in orders)
