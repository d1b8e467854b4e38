from __future__ import annotations

import csv
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import drumline
from drumline.build.prediction import config_of
from drumline.config.inference import ChooseTask
from drumline.errors import ConfigError, DataError, Interrupted
from drumline.infer import given_rows, stop_requests
from drumline.infer.ledger_folder import ROWS_LOCK, lock_file, make_folders
from drumline.infer.locks import Locks
from drumline.predictions import PredictionDir
from tests.tiny_models import save_bert

ROWS: list[dict[str, Any]] = [{"id": f"r{number}", "x": float(number)} for number in range(50)]


class Doubling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0))
        self.dropout = nn.Dropout(0.5)
        self.seen: list[int] = []

    def forward(self, values: Tensor) -> Tensor:
        self.seen.append(len(values))
        scaled: Tensor = self.dropout(values) * self.factor
        return scaled


def double(model: nn.Module, batch: dict[str, Any]) -> dict[str, Tensor]:
    doubled = model(batch["x"].float())
    return {"double": doubled, "vector": torch.stack([doubled, -doubled], dim=1)}


def test_a_module_and_a_function_answer_rows_in_order() -> None:
    model = Doubling()
    answered = drumline.predict(model, ROWS, predict=double, batching={"rows": 8})
    assert answered == [
        {**row, "double": row["x"] * 2, "vector": [row["x"] * 2, row["x"] * -2], "error": None} for row in ROWS
    ]
    assert model.seen == [8, 8, 8, 8, 8, 8, 2]


def test_the_model_is_left_in_the_mode_that_it_was_in() -> None:
    model = Doubling()
    model.dropout.eval()
    drumline.predict(model, ROWS, predict=double)
    assert (model.training, model.dropout.training) == (True, False)


def test_who_waits_for_another_to_freeze_rows_heeds_a_stop(tmp_path: Path) -> None:
    config = config_of(Doubling(), "generate", tmp_path / "out.jsonl", {})
    directory = PredictionDir(config.directory)
    make_folders(directory)
    locks = Locks(lock_file(directory))
    try:
        with locks.held(ROWS_LOCK), pytest.raises(Interrupted):
            given_rows.freeze(directory, iter([]), config, lambda: True)
    finally:
        locks.close()


def test_the_same_call_goes_on_after_a_request_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_requests, "LOOK_S", 0.0)
    out = tmp_path / "out.jsonl"
    request = tmp_path / "out.jsonl.run" / "requests" / "stop"

    def asking(model: nn.Module, batch: dict[str, Any]) -> dict[str, Tensor]:
        request.parent.mkdir(exist_ok=True)
        request.touch()
        return double(model, batch)

    with pytest.raises(Interrupted):
        drumline.predict(Doubling(), ROWS, predict=asking, out=out, batching={"rows": 4})
    os.utime(request, (1, 1))
    assert drumline.predict(Doubling(), ROWS, predict=double, out=out, batching={"rows": 4}) == out
    assert len(out.read_text().splitlines()) == 50


def test_rows_are_gone_through_once() -> None:
    def once() -> Iterator[dict[str, Any]]:
        yield from ROWS

    rows = once()
    answered = drumline.predict(Doubling(), rows, predict=double)
    assert len(answered) == 50
    assert list(rows) == []


@pytest.mark.parametrize("rows", [[], [{"x": 1.0}]], ids=["none", "one"])
def test_few_rows(rows: list[dict[str, Any]]) -> None:
    answered = drumline.predict(Doubling(), rows, predict=double)
    assert [row["double"] for row in answered] == [2.0] * len(rows)


def test_a_collate_of_one_s_own_makes_the_batch() -> None:
    def lengths(rows: list[dict[str, Any]]) -> Tensor:
        return torch.tensor([float(len(row["text"])) for row in rows])

    texts = ["a", "bcd", ""]
    answered = drumline.predict(Doubling(), texts, predict=lambda model, batch: model(batch), collate=lengths)
    assert answered == [{"text": text, "prediction": 2.0 * len(text), "error": None} for text in texts]


def test_rows_that_fail_say_why_and_the_others_have_answers() -> None:
    def picky(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        if (batch["x"] == 7).any() or (batch["x"] == 31).any():
            raise ArithmeticError("seven")
        answers: Tensor = model(batch["x"])
        return answers

    answered = drumline.predict(Doubling(), ROWS, predict=picky)
    assert [row["id"] for row in answered if row["error"]] == ["r7", "r31"]
    assert answered[7]["error"] == "ArithmeticError: seven"
    assert sum("prediction" in row for row in answered) == 48


def test_a_function_that_does_not_answer_each_row_is_refused() -> None:
    with pytest.raises(ConfigError, match="one number for"):
        drumline.predict(Doubling(), ROWS, predict=lambda model, batch: model(batch["x"]).sum())


def test_a_file_appears_and_its_path_is_returned(tmp_path: Path) -> None:
    out = tmp_path / "new" / "answers.csv"
    assert drumline.predict(Doubling(), ROWS, predict=double, out=out, prefix="model_") == out
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "x", "model_double", "model_vector", "model_error"]
    assert [float(row["model_double"]) for row in rows] == [row["x"] * 2 for row in ROWS]


def test_a_call_that_ended_early_is_gone_on_with(tmp_path: Path) -> None:
    def until(model: nn.Module, batch: dict[str, Any]) -> dict[str, Tensor]:
        if (batch["x"] > 30).any():
            raise KeyboardInterrupt
        return double(model, batch)

    out = tmp_path / "answers.jsonl"
    with pytest.raises(KeyboardInterrupt):
        drumline.predict(Doubling(), ROWS, predict=until, out=out, batching={"rows": 8})
    assert not out.exists()
    model = Doubling()
    drumline.predict(model, ROWS, predict=double, out=out, batching={"rows": 8})
    assert 0 < sum(model.seen) < 50
    assert [json.loads(line)["double"] for line in out.read_text().splitlines()] == [row["x"] * 2 for row in ROWS]


def test_a_finished_file_is_given_back_without_the_model(tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    drumline.predict(Doubling(), ROWS, predict=double, out=out)
    model = Doubling()
    assert drumline.predict(model, ROWS, predict=double, out=out) == out
    assert model.seen == []


def test_other_rows_or_settings_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    drumline.predict(Doubling(), ROWS, predict=double, out=out)
    with pytest.raises(DataError, match="other rows"):
        drumline.predict(Doubling(), ROWS[:-1], predict=double, out=out)
    with pytest.raises(ConfigError, match="seed"):
        drumline.predict(Doubling(), ROWS, predict=double, out=out, seed=4)


def test_somebody_else_s_file_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    out.write_text("precious\n")
    with pytest.raises(DataError, match="exists"):
        drumline.predict(Doubling(), ROWS, predict=double, out=out)
    assert out.read_text() == "precious\n"


def test_several_calls_at_once_share_the_rows(tmp_path: Path) -> None:
    out, models, returned = tmp_path / "answers.jsonl", [Doubling(), Doubling()], []
    meet = threading.Barrier(2)

    def call(model: Doubling) -> None:
        meet.wait(5)
        returned.append(drumline.predict(model, ROWS, predict=double, out=out, batching={"rows": 2}))

    threads = [threading.Thread(target=call, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert returned == [out, out]
    assert sum(sum(model.seen) for model in models) == 50
    assert [json.loads(line)["double"] for line in out.read_text().splitlines()] == [row["x"] * 2 for row in ROWS]


def test_what_the_arguments_say_is_in_the_settings(tmp_path: Path) -> None:
    config = config_of(
        "some/model",
        {"kind": "choose", "labels": ["yes", "no"]},
        tmp_path / "a.jsonl",
        {"loading": {"dtype": "float32"}, "columns": {"text": "body"}, "seed": 3, "batching": {"rows": 2}},
    )
    assert isinstance(config.task, ChooseTask)
    assert (config.model.path, config.model.dtype, config.rows.text) == ("some/model", "float32", "body")
    assert (config.seed, config.batching.rows, config.task.labels) == (3, 2, ["yes", "no"])
    assert config_of("some/model", ChooseTask(labels=["a"]), None, {}).task == ChooseTask(labels=["a"])
    assert config_of("m", "embed", None, {}).task.kind == "embed"


def test_settings_that_are_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="no setting 'batchsize'"):
        drumline.predict("m", ROWS, batchsize=3)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="batching"):
        drumline.predict("m", ROWS, batching={"row": 3})
    with pytest.raises(ConfigError, match="task"):
        drumline.predict("m", ROWS, "guess")
    with pytest.raises(ConfigError, match="predict="):
        drumline.predict("m", ROWS, predict=double)


def test_nothing_is_left_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    drumline.predict(Doubling(), ROWS, predict=double)
    with pytest.raises(DataError):
        drumline.predict(Doubling(), [3], predict=double)  # type: ignore[list-item]
    assert list(tmp_path.iterdir()) == []
    assert given_rows.FOLDER.startswith("drumline")


def test_a_transformers_model_in_memory_says_what_its_folder_says(tmp_path: Path) -> None:
    import transformers

    save_bert(tmp_path / "model")
    model = transformers.AutoModel.from_pretrained(tmp_path / "model").train()
    texts = ["the whale", "the white whale of the sea", ""]
    found = drumline.predict(str(tmp_path / "model"), texts, "embed", loading={"dtype": "float32"})
    assert drumline.predict(model, texts, "embed") == found
    assert model.training
    model.config._name_or_path = ""
    with pytest.raises(ConfigError, match="nothing is known of the words of this"):
        drumline.predict(model, texts, "embed")
    assert drumline.predict(model, texts, "embed", tokenizer=tmp_path / "model") == found
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    assert drumline.predict(model, texts, "embed", tokenizer=tokenizer) == found
