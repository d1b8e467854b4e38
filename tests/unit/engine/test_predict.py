from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from drumline import RunConfig, TrainConfig, Trainer
from drumline.engine.predict import predict
from drumline.errors import ConfigError, DataError, ValueRangeError
from drumline.tasks.classification import Classification
from drumline.tasks.sequence_to_sequence import SequenceToSequence

X, Y = torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 1])


def trainer(folder: Path, loss: Any) -> Trainer:
    config = RunConfig.model_validate(
        {
            "run_dir": folder / "run",
            "train": TrainConfig(global_batch=2, max_steps=1, precision="fp32"),
            "track": {"console": False},
            "loader": {"num_workers": 0},
        }
    )
    return Trainer(nn.Linear(2, 2), config, TensorDataset(X, Y), loss=loss)


def test_labels_may_be_there_or_not(tmp_path: Path) -> None:
    with trainer(tmp_path, Classification(2)) as trained:
        entries = predict(trained._run, TensorDataset(X, Y))
        assert [sorted(entry) for entry in entries] == [["label", "probabilities"]] * 3
        bare = predict(trained._run, TensorDataset(X))
        assert all(torch.equal(a["probabilities"], b["probabilities"]) for a, b in zip(entries, bare, strict=True))
        with torch.no_grad():
            expected = trained.model(X).softmax(-1)
        assert torch.allclose(torch.stack([entry["probabilities"] for entry in entries]), expected)


def test_what_the_model_cannot_take_is_refused(tmp_path: Path) -> None:
    with trainer(tmp_path, Classification(2)) as trained, pytest.raises(ValueRangeError, match=r"labels\[0\] is 5"):
        predict(trained._run, TensorDataset(X, Y + 5))


def mean(model: nn.Module, batch: Any) -> Tensor:
    outputs: Tensor = model(batch[0])
    return outputs.mean()


@pytest.mark.parametrize("loss", [mean, SequenceToSequence(5)], ids=["a function", "sequence to sequence"])
def test_a_task_without_predictions_needs_a_function(tmp_path: Path, loss: Any) -> None:
    with trainer(tmp_path, loss) as trained:
        with pytest.raises(ConfigError, match="predicts is not known\n  fix: give forward="):
            predict(trained._run, TensorDataset(X))
        if loss is mean:
            assert len(predict(trained._run, TensorDataset(X), forward=lambda model, batch: model(batch[0]))) == 3


@pytest.mark.parametrize(
    ("forward", "problem"),
    [
        (lambda model, batch: batch[0].sum(), r"predictions for 2 rows have the shape \[\]"),
        (lambda model, batch: batch[0][:1], r"have the shape \[1, 2\]"),
        (lambda model, batch: {"x": None}, "predictions are a NoneType"),
        (lambda model, batch: ["a", "b"], "predictions are a list"),
    ],
)
def test_predictions_that_are_not_one_a_row_are_refused(tmp_path: Path, forward: Any, problem: str) -> None:
    with trainer(tmp_path, mean) as trained, pytest.raises(ConfigError, match=problem):
        predict(trained._run, TensorDataset(X), forward=forward)


class Short(Dataset[Tensor]):
    """Says that it has three rows, and gives less when all are asked for."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Tensor:
        raise AssertionError("rows are asked for together")

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        return [X[0]] * min(len(indices), 1)


def test_rows_that_go_missing_are_noticed(tmp_path: Path) -> None:
    with trainer(tmp_path, mean) as trained, pytest.raises(DataError, match="2 rows were read of 3"):
        predict(trained._run, Short(), forward=lambda model, batch: batch)


def test_a_view_takes_nothing_along(tmp_path: Path) -> None:
    wide = torch.zeros(1000, 2)

    def forward(model: nn.Module, batch: Any) -> Tensor:
        return wide[: len(batch[0])]

    with trainer(tmp_path, mean) as trained:
        entry = predict(trained._run, TensorDataset(X), forward=forward)[0]
    assert entry.untyped_storage().nbytes() <= 2 * 2 * 4
