"""A metric that is no number on the evaluation data: left out, and told of once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from drumline import Trainer
from drumline.tasks.classification import Classification
from tests.unit.engine.training import config_of

ROWS = TensorDataset(torch.eye(4).repeat(2, 1), torch.zeros(8, dtype=torch.int64))


def test_an_auc_of_rows_of_one_class_is_left_out_and_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(tmp_path / "run", train={"epochs": 3, "precision": "fp32"}, evaluate={"every": 2})
    caplog.set_level("INFO", logger="drumline")
    with Trainer(nn.Linear(4, 2), config, ROWS, loss=Classification(2), eval_data=ROWS) as trainer:
        evaluations = [info.evaluation for info in trainer.steps() if info.evaluation is not None]
    assert len(evaluations) == 3
    assert all("auc" not in evaluation and "accuracy" in evaluation for evaluation in evaluations)
    told = [record for record in caplog.records if "is not a number" in record.message]
    assert [record.args for record in told] == [("auc",)]
