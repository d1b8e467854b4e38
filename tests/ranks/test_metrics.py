"""Case 6: metrics of an evaluation are those of one process, for any data-set size, batch size and world size."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, r2_score, roc_auc_score
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset
from torchmetrics import CatMetric, Metric
from torchmetrics.regression import PearsonCorrCoef

from drumline import Trainer
from drumline.data.source import as_source
from drumline.engine.evaluate import evaluate
from drumline.engine.feeds import evaluation_feed
from drumline.parallel.strategy import Batch, Task
from drumline.tasks.batches import labels_of
from drumline.tasks.classification import Classification
from drumline.tasks.contrastive import Contrastive
from drumline.tasks.multi_label import MultiLabel
from drumline.tasks.regression import Regression
from drumline.tasks.token_classification import TokenClassification
from tests.rank_pool import RankError, RankPool
from tests.ranks.training import Case, config_of, fresh

SIZES, BATCHES = (0, 1, 2, 7, 10, 21), (1, 4, 256)
NAMES = ("red", "green", "blue")
GRID = [(size, batch) for size in SIZES for batch in BATCHES]


class Shift(nn.Module):
    """Adds a weight to each number: the same bits whatever else is in the batch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.linspace(-0.1, 0.1, width, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


class Pairs(Dataset[dict[str, dict[str, Tensor]]]):
    """Rows of two data sets that belong together."""

    def __init__(self, anchors: Tensor, positives: Tensor) -> None:
        self._both = anchors, positives

    def __len__(self) -> int:
        return len(self._both[0])

    def __getitem__(self, index: int) -> dict[str, dict[str, Tensor]]:
        if index >= len(self):
            raise IndexError(index)
        return {name: {"x": both[index]} for name, both in zip(("anchor", "positive"), self._both, strict=True)}


class Kind(NamedTuple):
    task: Task
    width: int
    rows: Any
    """21 rows."""


def make(name: str) -> Kind:
    """21 rows of one kind; scores are rounded, so that some are equal."""
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(21, 4, 3, dtype=torch.float64, generator=generator)
    truth = torch.randint(3, (21, 4), generator=generator)
    scores = ((noise + torch.nn.functional.one_hot(truth, 3)) * 2).round() / 2
    if name == "classification":
        return Kind(Classification(3, names=NAMES), 3, TensorDataset(scores[:, 0], truth[:, 0]))
    if name == "two classes":
        return Kind(Classification(2), 2, TensorDataset(scores[:, 0, :2], truth[:, 0].clamp(max=1)))
    if name == "multi-label":
        present = (noise[:, 1] + scores[:, 0] > 0.5).double()
        return Kind(MultiLabel(3, threshold=0.6, names=NAMES), 3, TensorDataset(scores[:, 0], present))
    if name == "regression":
        return Kind(Regression(num_targets=3), 3, TensorDataset(scores[:, 0], scores[:, 0] + noise[:, 0] / 2))
    if name == "tokens":
        truth[::3, 1:] = -100
        truth[9:16] = -100  # on 3 ranks, the whole part of one
        return Kind(TokenClassification(3, NAMES), 3, TensorDataset(scores, truth))
    assert name == "contrastive"
    return Kind(Contrastive(), 3, Pairs(scores[:, 0], scores[:, 0] + noise[:, 1] / 4))


class Part(Dataset[Any]):
    """The first rows of a data set."""

    def __init__(self, rows: Any, size: int) -> None:
        self._rows, self._size = rows, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        return self._rows[index]


def evaluate_all(name: str, directory: str) -> list[dict[str, float]]:
    """By size and batch; one run evaluates all."""
    kind, found = make(name), []
    case = Case(directory, {"train": {"global_batch": 4, "epochs": 1}})
    with Trainer(Shift(kind.width), config_of(case), kind.rows, loss=kind.task, eval_data=kind.rows) as trainer:
        trainer.evaluate()
        run = trainer._run
        for size, batch in GRID:
            source = dataclasses.replace(as_source(Part(kind.rows, size)), batch_size=batch)
            feed = evaluation_feed(source, kind.task, run.config, run.plan, trainer.world)
            found.append(evaluate(dataclasses.replace(run, evaluation_feed=feed)))
            feed.close()
    return found


KINDS = ["classification", "two classes", "multi-label", "regression", "tokens", "contrastive"]
EXACT = {"accuracy", "f1", "auc", "r2", "count", *(f"f1/{name}" for name in NAMES)}


@pytest.mark.parametrize("name", KINDS)
def test_metrics_are_those_of_one_process(ranks: RankPool, tmp_path: Path, name: str) -> None:
    ((*alone,),) = ranks.run(1, evaluate_all, name, fresh(tmp_path))
    assert all(math.isfinite(value) for found in alone for value in found.values())
    assert [found["count"] for found in alone] == [size for size, _ in GRID]
    assert all(found.keys() == {"count"} for found, (size, _) in zip(alone, GRID, strict=True) if size == 0)
    # What one row does not define is left out, not reported as 0.
    assert not {"auc", "r2"} & alone[GRID.index((1, 4))].keys()
    for world in (2, 3):
        for answers in ranks.run(world, evaluate_all, name, str(tmp_path / f"world-{world}"), timeout=60):
            for found, expected, where in zip(answers, alone, GRID, strict=True):
                if name == "contrastive":  # a row's loss is that of its batch
                    found["loss"] = expected["loss"] = 0.0
                assert found.keys() == expected.keys(), where
                exact = {key: value for key, value in found.items() if key in EXACT}
                assert exact == {key: value for key, value in expected.items() if key in EXACT}, where
                assert found == pytest.approx(expected, abs=1e-12), where


def test_the_values_are_scikit_learns(tmp_path: Path, ranks: RankPool) -> None:
    def metrics(name: str) -> tuple[dict[str, float], Any, Any]:
        """Of all rows in batches of 4, with their scores and labels."""
        ((*alone,),) = ranks.run(1, evaluate_all, name, fresh(tmp_path))
        kind = make(name)
        scores, labels = (torch.stack(column) for column in zip(*(kind.rows[row] for row in range(21)), strict=True))
        return alone[GRID.index((21, 4))], Shift(kind.width)(scores).detach(), labels

    def by_class(found: dict[str, float]) -> list[float]:
        return [found[f"f1/{name}"] for name in NAMES]

    found, scores, labels = metrics("classification")
    predicted, chances = scores.argmax(-1), scores.softmax(-1)
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert found["f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    assert by_class(found) == pytest.approx(f1_score(labels, predicted, average=None))
    assert found["auc"] == pytest.approx(roc_auc_score(labels, chances, multi_class="ovr"))

    found, scores, labels = metrics("two classes")
    assert found["auc"] == pytest.approx(roc_auc_score(labels, scores[:, 1] - scores[:, 0]))

    found, scores, labels = metrics("multi-label")
    assert found["f1"] == pytest.approx(f1_score(labels, scores.sigmoid() >= 0.6, average="macro", zero_division=0))
    assert by_class(found) == pytest.approx(f1_score(labels, scores.sigmoid() >= 0.6, average=None))
    assert found["auc"] == pytest.approx(roc_auc_score(labels, scores, average="macro"))

    found, scores, labels = metrics("regression")
    assert found["mae"] == pytest.approx(float((scores - labels).abs().mean()))
    assert found["rmse"] == pytest.approx(float((scores - labels).square().mean().sqrt()))
    assert found["r2"] == pytest.approx(r2_score(labels, scores))

    found, scores, labels = metrics("tokens")
    counted = labels != -100
    predicted = scores.argmax(-1)[counted]
    assert found["accuracy"] == pytest.approx(accuracy_score(labels[counted], predicted))
    assert found["f1"] == pytest.approx(f1_score(labels[counted], predicted, average="macro"))
    assert by_class(found) == pytest.approx(f1_score(labels[counted], predicted, average=None))


class Custom(Regression):
    """A user's metrics: kept batches, and one that torchmetrics merges by a rule of its own."""

    def metrics(self) -> dict[str, Metric]:
        return {"spread": Spread(), "pearson": PearsonCorrCoef()}

    def measure(self, metrics: Mapping[str, Metric], outputs: Tensor, batch: Batch) -> None:
        labels = labels_of(batch)
        metrics["spread"].update(labels)
        metrics["pearson"].update(outputs.flatten(), labels.flatten())


class Spread(CatMetric):
    """Keeps what it is given, a tensor of the batch; not a number if that lies in memory of a loader process."""

    def update(self, value: Tensor) -> None:  # type: ignore[override]
        assert not value.is_shared()
        super().update(value.flatten())

    def compute(self) -> Tensor:
        values = super().compute()
        assert len(values) == 21
        return values.max() - values.min()


def evaluate_custom(directory: str) -> dict[str, float]:
    x = torch.linspace(0, 2, 21, dtype=torch.float64)
    rows = TensorDataset(x[:, None], x.square())
    train = {"global_batch": 4, "epochs": 1}
    case = Case(directory, {"train": train, "evaluate": {"batch": 2}, "loader": {"num_workers": 1}})
    with Trainer(Shift(1), config_of(case), rows, loss=Custom(), eval_data=rows) as trainer:
        return trainer.evaluate()


def test_metrics_of_ones_own_are_merged_and_keep_no_memory_of_the_loaders(ranks: RankPool, tmp_path: Path) -> None:
    (alone,) = ranks.run(1, evaluate_custom, fresh(tmp_path))
    x = np.linspace(0, 2, 21)
    assert alone["spread"] == 4.0
    assert alone["pearson"] == pytest.approx(np.corrcoef(x, x**2)[0, 1], abs=1e-6)
    for found in ranks.run(3, evaluate_custom, fresh(tmp_path)):
        assert found == pytest.approx(alone, abs=1e-6)


class Failing(Regression):
    """Fails on the rank whose rows end the data set."""

    def measure(self, metrics: Mapping[str, Metric], outputs: Tensor, batch: Batch) -> None:
        if float(outputs.max()) > 19:
            raise ValueError("planted")


def evaluate_failing(directory: str) -> None:
    x = torch.arange(21, dtype=torch.float64)
    rows = TensorDataset(x[:, None], x)
    case = Case(directory, {"train": {"global_batch": 4, "epochs": 1}})
    with Trainer(Shift(1), config_of(case), rows, loss=Failing(), eval_data=rows) as trainer:
        trainer.evaluate()


def test_a_metric_that_fails_on_one_rank_ends_all(ranks: RankPool, tmp_path: Path) -> None:
    with pytest.raises(RankError) as caught:
        ranks.run(3, evaluate_failing, fresh(tmp_path))
    errors = caught.value.errors
    assert {rank: error.type_name for rank, error in errors.items()} == {
        0: "PeerFailed",
        1: "PeerFailed",
        2: "ValueError",
    }
    assert all("rank 2 failed: ValueError: planted" in errors[rank].message for rank in (0, 1))
